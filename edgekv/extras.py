"""Packages that only some uses need, imported when they are used, and the interpreter that some of these start."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.util import find_spec
from typing import Any

from .errors import ConfigError


def needed(module: str, extra: str) -> Any:
    """Return a module that an extra of edgekv brings. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module, extra) from error


def check_installed(package: str, extra: str) -> None:
    """Raise ConfigError if a package that an extra of edgekv brings is not installed. Imports nothing."""
    if find_spec(package) is None:
        raise _missing(package, extra)


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra by their own names; edgekv is not built anew."""
    from importlib.metadata import PackageNotFoundError, requires  # few programs lack a package

    of_extra = re.compile(rf"""(?: and|;) extra == ["']{extra}["']$""")
    try:
        stated = requires("edgekv") or ()
    except PackageNotFoundError:  # a packaged program may lack what pip notes of packages
        return f"install what edgekv's pyproject.toml has as its extra {extra!r}"
    wanted = [of_extra.sub("", package) for package in stated if of_extra.search(package)]
    return " ".join(["pip install", *('"' + package.replace('"', "'") + '"' for package in wanted)])


def has_interpreter() -> bool:
    """Return True if this program can start a Python interpreter; a packaged one has none."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def _missing(module: str, extra: str) -> ConfigError:
    package = module.partition(".")[0]
    return ConfigError(f"this needs {package}, which is not installed; {install_command(extra)}")
