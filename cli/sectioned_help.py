"""Help of commands with their options in sections."""

from __future__ import annotations

import click
import typer.core


class SectionedCommand(typer.core.TyperCommand):
    """A command whose help has each option in the section that its `rich_help_panel` names, its own ones first."""

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
