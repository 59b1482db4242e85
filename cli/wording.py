"""Messages in the words of the command line.

The library's errors name arguments as a Python program writes them: `max_tokens=0`, `repack=True`. A user of the
command line knows the same things as options. Which option stands for which argument is read off the commands that
are in use.
"""

from __future__ import annotations

import functools
import re

import click

from .command_table import Imported

# arguments whose option has another name
_ARGUMENTS = {"temperature": "--temp"}


_speaks_of: list[click.Command] = []  # the command line; `main` sets it


def speak_of(command: click.Command) -> None:
    """Say which command line messages are worded for."""
    _speaks_of[:] = [command]
    _options.cache_clear()
    _pattern.cache_clear()


def worded(message: str) -> str:
    """A message of the library with options in place of arguments: `--max-tokens 0`, `--repack`."""
    return _pattern().sub(_spelled, message) if _speaks_of else message


@functools.cache
def _pattern() -> re.Pattern[str]:
    names = sorted(_options(), key=len, reverse=True)
    policy = r"\w\([^()]*\)"  # its own options stay as they are
    with_value = rf"({'|'.join(names)})=(?:(True|False)\b)?"
    bare = rf"({'|'.join(name for name in names if '_' in name)})\b(?![=.])"  # no English word has an underscore
    return re.compile(rf"{policy}|(?<![\w./-])(?:{with_value}|{bare})")


def _spelled(found: re.Match[str]) -> str:
    name, truth, bare = found.groups()
    if bare is not None:
        return _options()[bare][0]
    if name is None:
        return found[0]
    yes, no = _options()[name]
    return f"{yes} " if truth is None else yes if truth == "True" else no


@functools.cache
def _options() -> dict[str, tuple[str, str]]:
    """By argument, its option, and what says no to it."""
    found: dict[str, tuple[str, str]] = {}

    def collect(command: click.Command) -> None:
        for option in command.params:
            if isinstance(option, click.Option):
                yes, no = option.opts[-1], (option.secondary_opts or [f"no {option.opts[-1]}"])[-1]
                for name in (option.name or "", yes.lstrip("-").replace("-", "_")):
                    found.setdefault(name, (yes, no))
        inner = getattr(command, "commands", {})
        for it in (inner.data if isinstance(inner, Imported) else inner).values():
            collect(it)

    for command in _speaks_of:
        collect(command)
    found |= {name: found[yes.lstrip("-")] for name, yes in _ARGUMENTS.items() if yes.lstrip("-") in found}
    return found
