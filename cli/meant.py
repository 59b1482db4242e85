"""Names of commands that other programs have: edgekv says which of its own is meant."""

from __future__ import annotations

import click
import typer.core

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


class Commands(typer.core.TyperGroup):
    """The commands of edgekv."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named. Raises UsageError, which says what is meant."""
        if args[0] in MEANT and args[0] not in self.commands:
            ctx.fail(f"edgekv has no command {args[0]!r}; write `{MEANT[args[0]]}`")
        return super().resolve_command(ctx, args)


def as_help(arguments: list[str]) -> list[str]:
    """Return arguments in which `help COMMAND` is `COMMAND --help`."""
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments
