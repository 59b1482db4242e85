"""Commands with their options in sections of the help; an unknown option is told by what to write in its place."""

from __future__ import annotations

import click
import typer.core

from .other_options import what_to_write


class SectionedCommand(typer.core.TyperCommand):
    """A command whose help has each option in the section that its `rich_help_panel` names, its own ones first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. Raises UsageError for an option of another program, which says what to write."""
        words = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            known = (name for parameter in self.get_params(ctx) for name in parameter.opts)
            if (found := what_to_write(words, known)) is None:
                raise
            ctx.fail(f"{ctx.command_path} has no option {found[0]}; {found[1]}")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all parameters, in sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                otherwise = "Arguments" if isinstance(parameter, click.Argument) else "Options"
                section = getattr(parameter, "rich_help_panel", None) or otherwise
                sections.setdefault(section, []).append(record)
        for section, records in sections.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)
