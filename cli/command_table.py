"""Names of commands: those of edgekv, each imported when it is first used, and those of other programs."""

from __future__ import annotations

import gc
import importlib
import shlex
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import click
import typer
import typer.core
import typer.main

from .files import FilesCommand
from .sectioned_help import SectionedCommand

# by name, the module, and the function or the commands in it
COMMANDS = {
    "ask": "ask:ask",
    "chat": "chat.command:chat",
    "complete": "ask:complete",
    "read": "read:read",
    "inspect": "inspect:inspect",
    "serve": "serve:serve",
    "mcp": "serve_mcp:mcp",
    "batch": "run_batch:batch",
    "plan": "show_plan:plan",
    "pull": "pull:pull",
    "policies": "policies:policies",
    "devices": "devices:devices",
    "rpc-server": "devices:rpc_server",
    "bench": "bench:bench",
    "sessions": "sessions:app",
    "eval": "evaluate:app",
    "models": "models:app",
}
WITH_FILES = ("ask", "chat", "complete", "read", "inspect")  # their option -f takes several words

# by the name that was typed, the command that does it here
MEANT = {
    "run": "edgekv chat -m MODEL",
    "list": "edgekv models list",
    "ls": "edgekv models list",
    "show": "edgekv models show NAME",
    "info": "edgekv models show NAME",
    "search": "edgekv pull NAME",
    "get": "edgekv pull NAME",
    "download": "edgekv pull NAME",
    "rm": "edgekv models rm NAME",
    "generate": "edgekv complete",
    "server": "edgekv serve",
    "start": "edgekv serve",
    "summarize": "edgekv ask -f FILE 'Summarise it.'",
}


class Imported(UserDict[str, click.Command]):
    """Commands by name. One that is not used takes no time, and no memory under the ceiling."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in self.data:
            self.data[name] = _imported(name, COMMANDS[name])
        return self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS


def _imported(name: str, place: str) -> click.Command:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(f".{module}", __package__), attribute)
    gc.freeze()  # modules stay, so no plan or reply has to look for garbage among them
    app = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name, cls=FilesCommand if name in WITH_FILES else SectionedCommand)(found)
    return typer.main.get_group(app).commands[name]


class Commands(typer.core.TyperGroup):
    """The commands of edgekv."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Imported()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named. Raises UsageError, which says what is meant."""
        if args[0] in MEANT and args[0] not in self.commands:
            ctx.fail(f"edgekv has no command {args[0]!r}; write `{MEANT[args[0]]}`")
        if " " in args[0]:
            ctx.fail(f"{args[0]!r} is no command; a question is asked by `edgekv ask {shlex.quote(args[0])}`")
        return super().resolve_command(ctx, args)


def as_help(arguments: list[str]) -> list[str]:
    """Return arguments in which `help COMMAND` is `COMMAND --help`."""
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments
