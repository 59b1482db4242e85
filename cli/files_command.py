"""Commands that read texts, whose option -f takes several words."""

from __future__ import annotations

import click
import typer.core

from .found_files import with_flags


class FilesCommand(typer.core.TyperCommand):
    """A command whose option -f takes all words that are files, up to the first that is none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. A pattern that a shell has spelt out follows -f as many words."""
        return super().parse_args(ctx, list(with_flags(args)))
