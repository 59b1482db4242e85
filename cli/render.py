"""Output for people, on stderr: a progress bar while a prompt is read, and a footer after a reply."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

import edgekv
from edgekv.counting import counted
from edgekv.generation.stats import kept_tokens
from edgekv.memory.sizes import format_size
from edgekv.warmup import register_warmup

if TYPE_CHECKING:
    from edgekv.generation.request import ProgressCallback


def console_of(*, stderr: bool) -> Console:
    """Return a console over one of the two streams. It writes no escape codes in a pipe, or if NO_COLOR is set."""
    return Console(stderr=stderr, highlight=False, force_terminal=False if os.environ.get("NO_COLOR") else None)


console = console_of(stderr=True)

# control characters but tabs and line breaks, and what turns the direction of writing
_CONTROLS = re.compile("[\\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

# notes on ends of replies that are not usual
NOTES = {
    "cancelled": "stopped",
    "loop": "ended: it repeats itself",
    "length": "cut at --max-tokens",
    "context": "trained context full",
}

FEW_CELLS = 128  # docs/memory.md says how much is found again with these
LITTLE_KEPT = 1 / 8  # share of a text; docs/results says that most single facts are found again with an eighth


class Speed(ProgressColumn):
    """Tokens a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.0f} tok/s" if task.fields["unit"] == "tokens" else "")


@contextmanager
def loading() -> Iterator[None]:
    """A word on the terminal until the model is loaded; nothing if stderr is not a terminal."""
    if not console.is_terminal:
        yield
        return
    word = "loading ..."
    console.file.write(word)
    console.file.flush()
    try:
        yield
    finally:
        console.file.write("\r" + " " * len(word) + "\r")
        console.file.flush()


@contextmanager
def reading_bar(console: Console = console) -> Iterator[ProgressCallback]:
    """A progress bar that goes when the reading is done; nothing if stderr is not a terminal."""
    if not console.is_terminal:
        yield lambda progress: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        Speed(),
        TextColumn("{task.fields[cells]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None, visible=False, cells="", unit="tokens")

        def show(progress: edgekv.Progress) -> None:
            cells = f"{progress.cells_used}/{progress.budget_cells} cells"
            done = progress.tokens_done == progress.tokens_total
            recalls = progress.heads_total > 0
            bar.update(
                task,
                description="recalling" if recalls else "reading",
                total=progress.heads_total if recalls else progress.tokens_total,
                completed=progress.heads_scanned if recalls else progress.tokens_done,
                unit="heads" if recalls else "tokens",
                visible=not done,
                cells=cells,
            )
            if done:
                bar.stop()

        yield show


def print_footer(stats: edgekv.Stats, plan: edgekv.Plan) -> None:
    """Print the figures of a reply: tokens, cells, speed, memory; a line never ends within a figure."""
    for line in packed(figures_of(stats, plan), console.width):
        console.print(f"[dim]{line}[/dim]", soft_wrap=True)


def figures_of(stats: edgekv.Stats, plan: edgekv.Plan) -> list[str]:
    """Return the figures of a reply: notes on its end and its gaps, if any; tokens, both speeds, memory."""
    return [
        *([NOTES[stats.finish_reason]] if stats.finish_reason in NOTES else []),
        *_doubts(stats),
        remembered(stats.cells_used, stats.tokens_seen, stats.recallable_tokens),
        *([f"{counted(stats.recalled_cells, 'cell')} recalled in {stats.recall_s:.1f} s"] if stats.recalls else []),
        *([f"archive: {stats.archive_failure}"] if stats.archive_failure else []),
        *([stats.keeping_failure] if stats.keeping_failure else []),
        f"prompt {stats.prefill_tok_per_s:.0f} tok/s",
        *([f"generation {stats.decode_tok_per_s:.0f} tok/s"] if stats.generated_tokens else []),
        f"peak {format_size(stats.peak_rss_bytes)} of {format_size(plan.ceiling_bytes)}",
    ]


def _doubts(stats: edgekv.Stats) -> list[str]:
    """Return why a reply may lack something that was forgotten, or nothing."""
    if not stats.forgotten_tokens:
        return []
    if stats.budget_cells < FEW_CELLS:
        return ["few cells: do not rely on it (edgekv plan)"]
    share = stats.kept_tokens / stats.tokens_seen
    return [f"only {share:.0%} kept: do not rely on it"] if share < LITTLE_KEPT else []


def remembered(n_cells: int, n_seen: int, n_recallable: int = 0) -> str:
    """Return how much of a conversation is remembered, in words. n_recallable: tokens that only the archive has"""
    kept = kept_tokens(n_cells, n_seen)
    if kept == n_seen:
        return f"{counted(n_seen, 'token')} seen"
    archived = f", {n_recallable:,} of them archived" if n_recallable else ""
    return f"remembers {min(n_seen, kept + n_recallable):,} of {counted(n_seen, 'token')}{archived}"


def archive_line(made: edgekv.Plan) -> str:
    """Return what an archive takes on the disk, or why there is none beside the options; "" = it was turned off."""
    if made.archive_token_bytes:
        limit = "a quarter of what the disk has free" if made.archive == "auto" else "the most of a session"
        return (
            f"what is evicted is archived on the disk, in {made.archive_token_bytes:,} bytes a token; {limit}, "
            f"{format_size(made.archive_bytes)}, lasts for {made.archive_tokens:,} tokens; --archive off keeps none"
        )
    return f"what is evicted is not archived: {made.archive_obstacle}" if made.archive_obstacle else ""


def packed(items: Iterable[str], width: int) -> list[str]:
    """Items one after the other in lines of at most `width` columns, an item that is wider in a line of its own."""
    separator = " · "
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(separator) + len(item) <= width:
            lines[-1] += separator + item
        else:
            lines.append(item)
    return lines


def _warm_up() -> None:
    """Draw a bar and a line to nowhere, because rich imports its modules when it first draws."""
    nobody = Console(file=io.StringIO(), force_terminal=True, highlight=False)
    with reading_bar(nobody) as progress:
        for done in range(3):
            progress(edgekv.Progress(done, 2, cells_used=1, budget_cells=1))
    nobody.print("[dim]1 ·[/dim]", soft_wrap=True)


register_warmup(_warm_up)


def say(text: str, style: str = "dim") -> None:
    """Print a line about the program's work, on stderr; a terminal breaks it between words."""
    console.print(text, style=style, markup=False, soft_wrap=not console.is_terminal)


def printable(text: str) -> str:
    """A text with a mark in place of each control character, which a terminal might obey."""
    return _CONTROLS.sub("\ufffd", text)


@contextmanager
def measuring_bar(lengths: Sequence[int]) -> Iterator[Callable[[int, str], None]]:
    """A progress bar over cases, by the tokens of their texts; nothing if stderr is not a terminal.

    It is told the length and the name of each that is done.
    """
    if not console.is_terminal:
        yield lambda length, name: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[done]}/{task.fields[cases]}"),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task("", total=sum(lengths), cases=len(lengths), done=0)
        done = 0

        def show(length: int, name: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, advance=length, done=done, description=name)

        yield show
