"""A reply that is drawn on a terminal while it comes: Markdown, whose finished blocks are printed once."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from rich import markdown
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from edgekv.cli.render import printable
from edgekv.counting import counted
from edgekv.generation.reasoning import ReasoningSplitter

from .blocks import Block, Blocks

CODE = "cyan"  # one colour for all code: a highlighter would take MiB
BETWEEN_S = 0.1  # seconds between two drawings of the open block, so that a slow terminal is not flooded
THOUGHT_SHOWN = 300  # characters of the newest reasoning


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


class LiveReply:
    """A reply as Markdown. Finished blocks are printed for good; below them are the open one and a line of figures.

    Reasoning is shown dimmed while it comes, and then folded into one line.
    """

    def __init__(self, console: Console, figures: Callable[[int, float, int], str], *, thinks: bool = False) -> None:
        """figures: the line, by pieces so far, seconds since the first, and the columns that there are"""
        self._console = console
        self._figures = figures
        self._thoughts = ReasoningSplitter(begun=thinks)
        self._blocks = Blocks()
        self._thinking = ""  # the newest reasoning
        self._n_thought = 0  # its characters in all
        self._n_pieces = 0
        self._began = self._shown = 0.0
        self._quiet = ExitStack()
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=lambda: _Newest(self._open_parts(), self._console.height - 2),
        )

    def __enter__(self) -> LiveReply:
        self._quiet.enter_context(_without_echo())
        return self

    def add(self, piece: str) -> None:
        """Print the blocks that a piece completes, and now and then redraw the open one."""
        now = time.monotonic()
        if not self._n_pieces:
            self._began = now
            self._live.start()
        self._n_pieces += 1
        for part in self._thoughts.add(printable(piece)):
            self._take(*part)
        if now - self._shown >= BETWEEN_S:
            self._shown = now
            self.refresh()

    def refresh(self) -> None:
        """Redraw the open block."""
        self._live.refresh()

    def __exit__(self, *_: object) -> None:
        with self._quiet:
            if not self._n_pieces:
                return
            self._live.stop()
            for part in self._thoughts.end():
                self._take(*part)
            self._fold()
            for block in self._blocks.end():
                self._print(block)
            self._console.print()

    def _take(self, is_thought: bool, text: str) -> None:
        if is_thought:
            self._n_thought += len(text)
            self._thinking = (self._thinking + text)[-THOUGHT_SHOWN:]
            return
        self._fold()
        for block in self._blocks.add(text):
            self._print(block)

    def _fold(self) -> None:
        """Say that there was reasoning, once it has ended."""
        if self._n_thought:
            self._console.print(
                f"[dim]thought in {counted(self._n_thought, 'character')}; /thoughts shows them[/dim]\n"
            )
        self._n_thought, self._thinking = 0, ""

    def _print(self, block: Block) -> None:
        if block.gap:
            self._console.print()
        self._console.print(rendered(block), soft_wrap=block.is_code)

    def _open_parts(self) -> RenderableType:
        parts: list[RenderableType] = []
        block = self._blocks.unfinished
        if self._n_thought:
            parts.append(Text(" ".join(self._thinking.split()), style="dim italic"))
        elif block is not None:
            parts += [""] * block.gap + [rendered(block)]
        seconds = max(1e-3, time.monotonic() - self._began)
        line = self._figures(self._n_pieces, seconds, self._console.width)
        return Group(*parts, "", Text(line, style="dim", no_wrap=True, overflow="crop"))


class _Newest:
    """The last lines of something, as many as the screen has room for."""

    def __init__(self, inner: RenderableType, n_lines: int) -> None:
        self._inner = inner
        self._n_lines = max(1, n_lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._inner, options.update(height=None), pad=False)
        for line in lines[-self._n_lines :]:
            yield from line
            yield Segment.line()


@contextlib.contextmanager
def _without_echo() -> Iterator[None]:
    """Hide what is typed, for the length of the block: it would spoil the drawing. It waits for the next prompt."""
    if sys.platform == "win32":
        yield
        return
    import termios

    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):  # no terminal
        yield
        return
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


_SAMPLE = """<think>so</think># A *b* `c`

1. **d**
   - e

> f [g](h)

|i|j|
|-|-|
|k|l|

---
```
m
```
"""


def warm_up() -> None:
    """Draw a reply to nowhere: rich imports modules when it first draws."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80, height=24)
    with LiveReply(console, lambda n, seconds, width: "line") as reply:
        for piece in _SAMPLE.splitlines(keepends=True):
            reply.add(piece)
            reply.refresh()
