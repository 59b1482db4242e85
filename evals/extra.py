"""Libraries that only measuring needs, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from edgekv.errors import ConfigError


def needed(module: str, extra: str = "eval") -> Any:
    """A module of an extra of edgekv. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{module} is not installed; pip install 'edgekv[{extra}]'") from error
