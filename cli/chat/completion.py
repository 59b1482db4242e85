"""Completion of a line: commands, and the files, names and settings that they take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

Arguments = Callable[[str], Iterable[str]]  # takes the beginning of an argument; returns all completions


def candidates(line: str, commands: Mapping[str, Arguments | None]) -> Iterator[tuple[str, int]]:
    """Yield texts for the end of a line, each with the number of its characters that it replaces.

    commands: by name, the completion of their argument; None = none
    """
    if not line.startswith("/") or "\n" in line:
        return
    name, blank, argument = line.partition(" ")
    if not blank:
        yield from ((command, len(line)) for command in commands if command.startswith(line))
        return
    arguments = commands.get(name)
    if arguments is not None:
        yield from ((it, len(argument)) for it in arguments(argument) if it.startswith(argument))


def paths(beginning: str) -> Iterator[str]:
    """Yield files and folders whose path begins so; folders end with a slash. `~` stays as it is written."""
    folder, name = os.path.split(beginning)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = sorted(
                entry.name + "/" * entry.is_dir()
                for entry in entries
                if entry.name.startswith(name) and (name or not entry.name.startswith("."))
            )
    except OSError:
        return
    written = beginning.removesuffix(name)  # keeps separators as they were typed
    yield from (written + it for it in found)
