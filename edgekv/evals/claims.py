"""The claims of README about the default model, each measured on this machine.

Reading and generating are compared with the llama.cpp of edgekv's own library, without edgekv's cache.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgekv
from edgekv.memory.sizes import format_size, parse_size
from edgekv.models.catalog import find_model
from edgekv.testing.limited_run import run_in_group

from . import prose
from .document import Document
from .fresh import in_fresh_process
from .grid import Grid, in_process
from .needle import document
from .setting import DEFAULT
from .speed import ALIKE, STOCK, SpeedCase
from .speed_run import SpeedRun, prompts

CEILING, LIMIT = "216MiB", "144MiB"
SHORT, LONG = 4000, 8000  # tokens; the default model was trained on texts of 8,192
CELLS = 512  # cells that are compared with a cache of everything
FEW_CELLS = 64  # cells for a text of RECALL_TOKENS, and as many that are recalled
RECALL_TOKENS, RECALL_TEXTS = 1000, 8

UNDER = f"A question about {SHORT:,} tokens is answered rightly under a ceiling of {CEILING}."
CONSTANT = "A text twice as long takes no more memory."
SMALLER = f"After {LONG:,} tokens it holds at most two thirds of what llama.cpp holds at its defaults."
FASTER = f"After {LONG:,} tokens it generates at least twice as fast as llama.cpp set alike."
READS = f"It reads {LONG:,} tokens at least as fast as llama.cpp set alike."
RECALLS = f"With {FEW_CELLS} cells and an archive it finds more facts of {RECALL_TOKENS:,} tokens than without."
LIMITED = f"The question is answered in a control group of {LIMIT}."
CLAIMS = (UNDER, CONSTANT, SMALLER, FASTER, READS, RECALLS, LIMITED)


@dataclass(frozen=True, slots=True)
class Measured:
    """A claim, and what was measured. holds: None = this machine cannot measure it"""

    claim: str
    figure: str
    holds: bool | None


def measured_claims(threads: int | None = None, model: str | None = None) -> Iterator[Measured]:
    """Measure each claim in turn, and yield it; takes some minutes. threads: None = as each program chooses"""
    with prose.vocabulary(model) as vocabulary:
        texts = prompts(vocabulary, None, [SHORT, LONG])
        asked = document(vocabulary, None, SHORT, seed=0)
    yield _under_the_ceiling(asked, model, threads)
    yield from _beside_llama(texts, model, threads)
    yield _recalled(model, threads)
    yield _in_a_group(asked, model, threads)


def _under_the_ceiling(asked: Document, model: str | None, threads: int | None) -> Measured:
    found = in_fresh_process(_answer, asked.text, asked.questions[0].text, model, threads)
    peak, is_right = found["peak_bytes"], asked.questions[0].score(found["text"]) == 1
    figure = f"{format_size(peak)} at most, {_verdict(is_right)}"
    return Measured(UNDER, figure, is_right and peak <= parse_size(CEILING))


def _answer(text: str, question: str, model: str | None, threads: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text.txt")
        path.write_text(text, encoding="utf-8")
        with edgekv.Runtime(model, memory=CEILING, threads=threads) as runtime, runtime.session() as session:
            return {"text": session.reply(question, files=path, max_tokens=48).text}


def _beside_llama(texts: dict[int, str], model: str | None, threads: int | None) -> Iterator[Measured]:
    ours, short = (
        SpeedCase(model=model, policy=DEFAULT, budget=CELLS, block=128, n_tokens=n, n_generate=32, threads=threads)
        for n in (LONG, SHORT)
    )
    run = SpeedRun([[short], [ours.beside(STOCK), ours.beside(ALIKE), ours]], 1)
    run.check()
    for _ in run.steps(texts):
        pass
    cases = {(case["policy"], case["n_tokens"]): case for case in run.as_dict()["cases"]}
    ratios: list[tuple[str, tuple[str, int], str, Callable[[float], bool]]] = [
        (CONSTANT, (DEFAULT, SHORT), "peak_bytes", lambda ratio: ratio <= 1.02),
        (SMALLER, (STOCK, LONG), "peak_bytes", lambda ratio: ratio <= 2 / 3),
        (FASTER, (ALIKE, LONG), "decode_tok_per_s", lambda ratio: ratio >= 2),
        (READS, (ALIKE, LONG), "prefill_tok_per_s", lambda ratio: ratio >= 1),
    ]
    for claim, other, figure, holds in ratios:
        if (DEFAULT, LONG) not in cases or other not in cases:
            yield Measured(claim, next(iter(run.left_out.values())), None)
            continue
        mine, theirs = (cases[it][figure]["median"] for it in ((DEFAULT, LONG), other))
        shown = _size if figure == "peak_bytes" else _speed
        yield Measured(claim, f"{mine / theirs:.2f}: {shown(mine)} and {shown(theirs)}", holds(mine / theirs))


def _recalled(model: str | None, threads: int | None) -> Measured:
    def found(archive: str | None) -> float:
        grid = Grid(
            task="needle",
            model=model,
            policies=(DEFAULT,),
            budgets=(FEW_CELLS,),
            lengths=(RECALL_TOKENS,),
            samples=RECALL_TEXTS,
            archive=archive,
        )
        return sum(float(result["score"]) for _, result in in_process(grid.cases(), threads=threads))

    with_it, without = found("1GiB"), found(None)
    return Measured(RECALLS, f"{with_it:.0f} and {without:.0f} of {RECALL_TEXTS}", with_it > without)


def _in_a_group(asked: Document, model: str | None, threads: int | None) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text(asked.text, encoding="utf-8")
        command = [sys.executable, "-m", "edgekv", "ask", asked.questions[0].text, "-f", str(text)]
        command += ["-m", str(find_model(model)), "--memory", LIMIT]
        command += [] if threads is None else ["--threads", str(threads)]
        try:
            run = run_in_group(command, parse_size(LIMIT), None)
        except SystemExit as error:
            return Measured(LIMITED, str(error), None)
    is_right = asked.questions[0].score(run.output) == 1
    said = _verdict(is_right) if run.status == 0 else f"it ended with {run.status}"
    figure = f"{format_size(run.peak_bytes)} with the pages of files, {run.seconds:.1f} s, {said}"
    return Measured(LIMITED, figure, run.status == 0 and is_right)


def holds(found: Sequence[Measured]) -> bool:
    """Return True if no claim that could be measured is wrong."""
    return all(it.holds is not False for it in found)


def _verdict(is_right: bool) -> str:
    return "the right answer" if is_right else "a wrong answer"


def _size(n_bytes: float) -> str:
    return format_size(int(n_bytes))


def _speed(tokens: float) -> str:
    return f"{tokens:.0f} tokens/s"
