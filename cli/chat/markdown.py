"""Blocks of Markdown as rich shows them: without colours for code, which would take MiB, and without frames."""

from __future__ import annotations

from rich import markdown
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from .blocks import Block

CODE = "cyan"


def rendered(block: Block) -> RenderableType:
    """A block, which wraps at the width of the console; code does not wrap, so that it can be copied."""
    if block.is_code:
        return Text(f"  {block.text}", style=CODE, no_wrap=True, overflow="ignore")
    return _Markdown(block.text, hyperlinks=False)


class _Heading(markdown.Heading):
    """A heading at the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(markdown.CodeBlock):
    """Code within another block, as it stands."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip(), style=CODE)


class _Markdown(markdown.Markdown):
    elements = markdown.Markdown.elements | {"heading_open": _Heading, "fence": _Code, "code_block": _Code}
