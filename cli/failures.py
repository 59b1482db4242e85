"""Messages of commands that fail: as a line, or as JSON, with the place that a wrong value comes from."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from .settings import settings_path
from .wording import worded


class Source(NamedTuple):
    """A value of an option that was not given on the command line. place: the variable or file that gives it"""

    option: str
    value: str
    place: str


def tell(message: str, kind: str, status: int, arguments: Sequence[str]) -> None:
    """Tell an error: a line on standard error; with --json an object on standard output. kind: name of the error"""
    if wants_json(arguments):
        print(json.dumps({"error": {"type": kind, "message": message, "status": status}}, ensure_ascii=False))
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
    message = worded(error.format_message() if isinstance(error, click.ClickException) else str(error))
    sources = list(_sources(command, arguments, settings))
    from_file = {source.option for source in sources if source.place[:1] != "E"}
    if isinstance(error, click.BadParameter) and error.param is not None and {*error.param.opts} & from_file:
        message = re.sub(r" \(env var: '\w+'\)", "", message)  # click names it whoever gave the value
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
