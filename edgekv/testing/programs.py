"""Shared parts of the benches: arguments, fresh processes, tables, and ratios that survive a noisy machine."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20


def arguments(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every bench: a model, a book, and a file for the figures as JSON."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path or known name of a GGUF model (default: the default model)")
    parser.add_argument("--book", type=Path, required=True, help="a long English text in UTF-8, such as a novel")
    parser.add_argument("--threads", type=int, help="default: one for every processor")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    return parser


def median(values: Sequence[float]) -> float:
    """The median; of nothing, NaN."""
    return statistics.median(values) if values else float("nan")


def in_fresh_process(script: str, case: dict[str, object]) -> dict[str, object]:
    """Return the JSON that a bench prints for `--case` and a case on standard input, in a process of its own."""
    command = [sys.executable, script, "--case"]
    child = subprocess.run(command, input=json.dumps(case), stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, object] = json.loads(child.stdout)
    return figures


def run(main: Callable[[], object], run_case: Callable[[Any], object]) -> None:
    """Run a bench; or with `--case` a case from standard input, as `in_fresh_process` asks, and print its figures."""
    if sys.argv[1:] == ["--case"]:
        print(json.dumps(run_case(json.load(sys.stdin))))
    else:
        main()


def in_turn(
    i: int,
    ours: Callable[[], object],
    plain: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Time both, the one or the other first; returns the speed of ours / the speed of the plain one.

    clock: gives seconds; `time.process_time` counts those of processors, which others at work lengthen little
    """
    seconds = {}
    for run in (ours, plain) if i % 2 else (plain, ours):
        started = clock()
        run()
        seconds[run] = clock() - started
    return seconds[plain] / seconds[ours]


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell, the first one left-aligned."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]))


def print_pairs(
    names: tuple[str, str],
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]],
    figures: Sequence[str],
    units: Mapping[str, float] | None = None,
) -> None:
    """Print medians of both sides of pairs, and of the ratio of the second to the first within a pair.

    figures: the names of those that are shown
    units: divisors of the printed figures
    """
    rows = []
    for figure in figures:
        unit = (units or {}).get(figure, 1)
        medians = (f"{median([pair[side][figure] / unit for pair in pairs]):.2f}" for side in (0, 1))
        ratio = median([second[figure] / first[figure] for first, second in pairs])
        rows.append([figure, *medians, f"x{ratio:.2f}"])
    print_table(["", *names, "ratio"], rows)


def write_json(path: Path | None, figures: object) -> None:
    """Write the figures, if a path is given."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")
