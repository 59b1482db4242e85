"""Packages that only some uses need, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import ConfigError


def needed(module: str, extra: str) -> Any:
    """Return a module that an extra of edgekv brings. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(f"this needs {package}, which is not installed; pip install 'edgekv[{extra}]'") from error
