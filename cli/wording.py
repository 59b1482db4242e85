"""Messages of commands in the words of the command line, with the place of a wrong value; as a line, or as JSON.

The library's errors name arguments as a Python program writes them: `max_tokens=0`, `repack=True`. A user of the
command line knows the same things as options. Which option stands for which argument is read off the commands that
are in use.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from .command_table import Imported
from .settings import settings_path

# arguments whose option has another name: that of the option
_ARGUMENTS = {"temperature": "temp"}


class Source(NamedTuple):
    """A value of an option that was not given on the command line. place: the variable or file that gives it"""

    option: str
    value: str
    place: str


def tell(message: str, kind: str, status: int, arguments: Sequence[str]) -> None:
    """Tell an error: a line on standard error; with --json an object on standard output. kind: name of the error"""
    if wants_json(arguments):
        print(json.dumps({"error": {"type": kind, "message": message, "status": status}}))
    else:
        print(f"edgekv: {message}", file=sys.stderr)


def wants_json(arguments: Sequence[str]) -> bool:
    """Return True if the arguments of a command ask for JSON."""
    return "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


def message_of(
    error: Exception, command: click.Command, arguments: Sequence[str], settings: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the message of an error. It names the place of each value that it is about and nobody typed now.

    settings: options of the settings file, by command
    """
    message = worded(error.format_message() if isinstance(error, click.ClickException) else str(error), command)
    sources = list(_sources(command, arguments, settings))
    from_file = {source.option for source in sources if source.place[:1] != "E"}
    if isinstance(error, click.BadParameter) and error.param is not None and {*error.param.opts} & from_file:
        message = re.sub(r" \(env var: '\w+'\)", "", message)  # click names it even if the file gave the value
    about = [
        source
        for source in sources
        if source.place not in message
        and (repr(source.value) in message or re.search(rf"(?<![\w-]){source.option}(?![\w-])", message))
    ]
    told = (f"{source.option} {source.value} comes from {source.place}" for source in about)
    return "; ".join([message.rstrip("."), *told]) if about else message


def _sources(
    command: click.Command, arguments: Sequence[str], settings: Mapping[str, Mapping[str, Any]]
) -> Iterator[Source]:
    name = next((it for it in arguments if not it.startswith("-")), "")
    inner = getattr(command, "commands", {}).get(name)
    typed = {it.partition("=")[0] for it in arguments}
    for option in [] if inner is None else inner.params:
        if not isinstance(option, click.Option) or typed & {*option.opts, *option.secondary_opts}:
            continue
        variable = option.envvar if isinstance(option.envvar, str) else None
        if variable is not None and os.environ.get(variable):
            yield Source(option.opts[-1], os.environ[variable], variable)
        elif option.name in settings.get(name, {}):
            yield Source(option.opts[-1], str(settings[name][option.name]), str(settings_path()))


def worded(message: str, command: click.Command | None = None) -> str:
    """Return a message of the library with options in place of arguments: `--max-tokens 0`, `--repack`.

    command: the command line that has the options; None = the one that runs
    """
    if command is None:
        context = click.get_current_context(silent=True)
        if context is None:
            return message
        command = context.find_root().command
    options = _options(command)
    options |= {name: options[yes] for name, yes in _ARGUMENTS.items() if yes in options}

    def spelled(found: re.Match[str]) -> str:
        name, truth, bare = found.groups()
        if bare is not None:
            return options[bare][0]
        if name is None:
            return found[0]
        yes, no = options[name]
        return f"{yes} " if truth is None else yes if truth == "True" else no

    names = sorted(options, key=len, reverse=True)
    policy = r"\w\([^()]*\)"  # its own options stay as they are
    with_value = rf"({'|'.join(names)})=(?:(True|False)\b)?"
    bare = rf"({'|'.join(name for name in names if '_' in name)})\b(?![=.])"  # no English word has an underscore
    return re.sub(rf"{policy}|(?<![\w./-])(?:{with_value}|{bare})", spelled, message)


def _options(command: click.Command) -> dict[str, tuple[str, str]]:
    """Return options by argument, each with its negation, of a command and of its sub-commands that are imported."""
    found: dict[str, tuple[str, str]] = {}
    for option in command.params:
        if isinstance(option, click.Option):
            yes, no = option.opts[-1], (option.secondary_opts or [f"no {option.opts[-1]}"])[-1]
            for name in (option.name or "", yes.lstrip("-").replace("-", "_")):
                found.setdefault(name, (yes, no))
    inner = getattr(command, "commands", {})
    for it in (inner.data if isinstance(inner, Imported) else inner).values():
        found = _options(it) | found
    return found
