"""Arguments as programs give them: each slip becomes an error that names value and remedy, or what was meant."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from .errors import ConfigError

MOST_SHOWN = 200  # characters of a value in an error


def shown(value: object) -> str:
    """Return a value as an error tells it."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def path_of(name: str, value: object) -> Path:
    """Return the path that an argument names: a text, a Path, or the bytes of one. Raises ConfigError."""
    if not isinstance(value, (str, bytes, os.PathLike)) or value in ("", b""):
        raise ConfigError(f"{name}={shown(value)} is no path; give one as a text or as a Path")
    return Path(os.fsdecode(value))


def paths_of(name: str, value: object) -> tuple[os.PathLike[str], ...]:
    """Return the paths that an argument names: several, or a single one; None = none. Raises ConfigError.

    Objects that are paths stay as they are: a file may have a name of its own (`prompt.named_files`).
    """
    if value is None:
        return ()
    is_one = isinstance(value, (str, bytes, os.PathLike))
    given = (value,) if is_one else listed(name, value, "paths")
    return tuple(it if _is_path(it) else path_of(name, it) for it in given)


def _is_path(value: object) -> bool:
    return isinstance(value, os.PathLike) and isinstance(os.fspath(value), str)


def listed(name: str, value: object, kind: str) -> tuple[Any, ...]:
    """Return the values that an argument lists. kind: the word for them. Raises ConfigError for anything but a list."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping, os.PathLike)):
        raise ConfigError(f"{name}={shown(value)} is no list; give a list of {kind}")
    return tuple(value)


def check_flag(name: str, value: object, *, may_be_open: bool = False) -> None:
    """Raise ConfigError for a value that is neither True nor False: "no" would count as True.

    may_be_open: it may be None
    """
    possible = "True, False or None" if may_be_open else "True or False"
    if not (isinstance(value, bool) or (may_be_open and value is None)):
        raise ConfigError(f"{name}={shown(value)} is not possible; give {possible}")


def check_one_of(name: str, value: object, possible: Collection[str]) -> None:
    """Raise ConfigError for a value that is not possible."""
    if value not in possible:
        raise ConfigError(f"{name}={value!r} is unknown; possible: {', '.join(possible)}")


def check_range(name: str, value: object, low: float, high: float, *, whole: bool = True) -> None:
    """Raise ConfigError for what is no number in [low, high]. whole: nor a whole number"""
    number = isinstance(value, int if whole else Real) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # type: ignore[operator]
        kind = "whole number" if whole else "number"
        raise ConfigError(f"{name}={value!r} is not possible; give a {kind} in [{low}, {high}]")


def check_names(given: Iterable[str], possible: Iterable[str], whose: str, meant: Mapping[str, str]) -> None:
    """Raise ConfigError for a name of an argument that is unknown.

    whose: what takes the arguments; meant: what to do in place of names that other libraries have
    """
    known = {*possible}
    for name in given:
        if name not in known:
            remedy = meant.get(name, f"possible: {', '.join(sorted(known))}")
            raise ConfigError(f"{name}= is no option of {whose}; {remedy}")
