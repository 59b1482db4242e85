"""Reads a text in a process of its own under a ceiling: speed of its first and last tenth, and peak of memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgekv
from edgekv.memory.process import peak_resident_bytes
from edgekv.memory.sizes import MIB

from .document import Question
from .fresh import in_fresh_process
from .question_protocol import Answered, ask_all
from .setting import Setting

MARKS = (0.0, 0.1, 0.9, 1.0)  # shares of a text
HEADERS = ("first tenth tok/s", "last tenth tok/s", "last / first", "peak MiB", "growth")


def run_isolated(
    setting: Setting,
    n_tokens: int,
    text: Path,
    questions: Sequence[Question],
    *,
    nll: bool,
    threads: int | None,
    gpu_layers: int = 0,
) -> tuple[list[Answered], dict[str, Any]]:
    """Run `ask_all` in a fresh process that never holds the text as a whole; return its result, and figures.

    The figures: "tokens" of the prompt; "first_tok_per_s" and "last_tok_per_s", the speed of reading the first and the
    last tenth; "growth" of the peak from the end of the first tenth to the end of the text, as a share of it;
    "peak_bytes", the most that the process ever held; "planned_bytes". Speeds and growth are those of the first
    reading, and None for a text of fewer than ten blocks.

    Raises WorkerError if the process is killed, and what `edgekv.Runtime` and sessions raise.
    """
    stats = in_fresh_process(_read, setting, n_tokens, text, questions, nll, threads, gpu_layers)
    return stats.pop("answered"), stats


def _read(
    setting: Setting,
    n_tokens: int,
    text: Path,
    questions: Sequence[Question],
    nll: bool,
    threads: int | None,
    gpu_layers: int,
) -> dict[str, Any]:
    tenths = Tenths()
    with setting.open(n_tokens, threads=threads, gpu_layers=gpu_layers) as runtime:
        answered = ask_all(runtime, setting, text, questions, tenths, nll=nll)
        return {"answered": answered, **tenths.figures(), "planned_bytes": runtime.plan.peak_bytes}


class Tenths:
    """Notes when the first and the last tenth of a text begin and end, and the peak of memory then."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float, int]] = []  # tokens read, seconds, bytes
        self._n_tokens = 0

    def __call__(self, progress: edgekv.Progress) -> None:
        """Look, after a block. Speeds are taken between ends of blocks."""
        self._n_tokens = progress.tokens_total
        share = progress.tokens_done / progress.tokens_total
        if len(self._seen) < len(MARKS) and share >= MARKS[len(self._seen)]:
            self._seen.append((progress.tokens_done, time.perf_counter(), peak_resident_bytes()))

    def figures(self) -> dict[str, Any]:
        """Return the figures that `run_isolated` gives."""
        found: dict[str, Any] = {"tokens": self._n_tokens}
        if len(self._seen) < len(MARKS):
            return found | {"first_tok_per_s": None, "last_tok_per_s": None, "growth": None}
        (n0, t0, _), (n1, t1, early), (n2, t2, _), (n3, t3, late) = self._seen
        speeds = {"first_tok_per_s": (n1 - n0) / (t1 - t0), "last_tok_per_s": (n3 - n2) / (t3 - t2)}
        return found | speeds | {"growth": late / early - 1}


@dataclass(frozen=True)
class RunStats:
    """Figures of several texts: medians of speeds, and the most memory. None = the texts are too short to tell."""

    first_tok_per_s: float | None
    last_tok_per_s: float | None
    last_of_first: float | None
    peak_bytes: int
    growth: float | None

    @classmethod
    def of(cls, figures: Sequence[dict[str, Any]]) -> RunStats:
        """Sum up one text or more, each with the figures of `run_isolated`."""
        peak = max(each["peak_bytes"] for each in figures)
        long = [each for each in figures if each["growth"] is not None]
        if not long:
            return cls(None, None, None, peak, None)
        first, last = ([each[name] for each in long] for name in ("first_tok_per_s", "last_tok_per_s"))
        ratio = statistics.median(b / a for a, b in zip(first, last, strict=True))
        return cls(statistics.median(first), statistics.median(last), ratio, peak, max(each["growth"] for each in long))

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEADERS."""
        return (
            _formatted(self.first_tok_per_s, ".0f"),
            _formatted(self.last_tok_per_s, ".0f"),
            _formatted(self.last_of_first, ".2f"),
            _formatted(self.peak_bytes / MIB, ".1f"),
            _formatted(self.growth, "+.2%"),
        )


def _formatted(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
