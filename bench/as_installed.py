"""edgekv at its defaults against llama-cpp-python as another Python has it installed, at that one's defaults.

Claim (docs/results/speed.md): under three quarters of the memory that llama.cpp takes, edgekv reads and generates
faster, by the factors of `targets`.

Both get the same text. llama.cpp gets a context that holds it. edgekv gets a ceiling: `--share` of the peak that
llama.cpp had, or the next twentieth of it that holds the smallest plan. It chooses everything else itself, but for the
cells, if `--budget` names them. It reads the text as a file with a question about it, so it feeds probes, too. Models
that cannot chat go on from the text. With `--resident 1` no layer is read from the file for every batch, under the
next ceiling that holds all weights.

Every run is a fresh process that warms up. The two take turns, and each pair begins with the other one. A run that is
in `--results` is not repeated, unless edgekv's library has changed. The table shows medians of the ratios within pairs.
Where other programs use the machine, trust processor time: it decides with one thread. Threads that wait for each other
use processor time, too, so wall time decides with more.

    uv venv peer && uv pip install --python peer/bin/python --no-cache llama-cpp-python==0.3.36
    python bench/as_installed.py --peer peer/bin/python --results as_installed.jsonl --threads 1 --threads 2

A model is a path, a known name, the name of a real model (scripts/real_models.py), or SHAPE-QUANTISATION, which is made
(bench/quantized.py). To compare without AVX-512, build a peer for AVX2, and a library of edgekv's with several sets
(`scripts/test_other_build.sh one`), and name both:

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON" uv pip install --python peer-avx2/bin/python --no-cache ...
    EDGEKV_LIB_PATH=build/one python bench/as_installed.py --instructions avx2 --peer peer-avx2/bin/python ...

With `--other` a second llama-cpp-python takes edgekv's place, which was built otherwise. With `--fork` a program takes
the peer's place: fork_llama.cpp, compiled against a fork of llama.cpp. `--repack` has it repack weights as they load.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
from quantized import TYPES, quantized_shape

from edgekv.binding.library import library_path
from edgekv.evals import prose
from edgekv.evals.results import Results
from edgekv.evals.speed_run import prompts
from edgekv.models.catalog import find_model
from edgekv.models.names import quant_of
from edgekv.testing import programs
from edgekv.testing.models.shapes import SHAPES

SHARE_STEP = 0.05  # ceilings of edgekv, where the named one holds no plan
MODELS = (
    "smollm2-135m-instruct",
    *(f"qwen2.5-0.5b-{quantization}" for quantization in ("Q4_0", "Q8_0", "Q4_K_M", "Q5_K_M")),
    *(f"llama-3.2-1b-{quantization}" for quantization in TYPES),
    "qwen2.5-coder-1.5b-instruct-q4_k_m",
    "gemma-3-270m-q4_k_m",
)
LONG = 8000  # tokens
FIGURES = ("reading", "generating", "plain")  # plain = reading without a question


def targets(model: Path, n_tokens: int, instructions: str | None, fork: bool) -> dict[str, float]:
    """Return the speeds that are meant, as multiples of llama.cpp's; none is meant for reading other types."""
    quantization = quant_of(model.name)
    if fork:
        return {"reading": 1.3, "generating": 1.1, "plain": 1.5}
    if instructions is not None:
        return {"reading": 1.3, "generating": 1.0}
    if n_tokens >= LONG:
        return {"reading": 3.0, "generating": 1.0}
    reading = {"Q4_1": 2.0, "Q4_K_M": 1.5, "Q4_0": 1.4, "Q8_0": 1.4}.get(quantization or "")
    return {"generating": 1.0} if reading is None else {"reading": reading, "generating": 1.0}


def model_path(name: str) -> Path:
    """Return the file of a model; a made-up one is made if need be. Raises ModelNotFoundError."""
    shape, _, quantization = name.rpartition("-")
    if shape in SHAPES and quantization.upper() in TYPES:
        return quantized_shape(shape, quantization.upper())
    real = Path(platformdirs.user_cache_dir("edgekv", appauthor=False)) / "real-models" / f"{name}.gguf"
    return real if real.exists() else find_model(name)


def run_stock(python: str, given: dict[str, object]) -> dict[str, object]:
    """Measure a case with the llama-cpp-python of another Python."""
    command = [python, str(Path(__file__).with_name("stock_llama.py"))]
    child = subprocess.run(command, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, object] = json.loads(child.stdout)
    return figures


def run_fork(program: str, given: dict[str, object], repack: bool) -> dict[str, object]:
    """Measure a case with a fork of llama.cpp."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as text:
        text.write(str(given["text"]))
        text.flush()
        command = [program, given["model"], text.name, given["threads"] or 0, given["generate"], int(repack)]
        child = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, object] = json.loads(child.stdout)
    return figures


def run_edgekv(case: dict[str, object]) -> dict[str, object]:
    """Measure a case with edgekv."""
    return programs.in_fresh_process(str(Path(__file__).with_name("default_edgekv.py")), case)


@dataclass(frozen=True)
class Case:
    """A case of a model; its figures are medians of pairs.

    length, generate: tokens
    share: of llama.cpp's peak, edgekv's ceiling
    resident: of edgekv's layers, the share that stays in memory; None = as edgekv chooses
    peer, other: Pythons that have a llama-cpp-python
    fork: a program, in place of the peer
    library: first digits of the digest (hex) of edgekv's library
    """

    model: str
    length: int
    threads: int | None
    generate: int
    share: float
    budget: int | None
    resident: float | None
    instructions: str | None
    peer: str | None
    other: str | None
    fork: str | None
    repack: bool
    library: str


class Measurement:
    """Pairs of one case, which `results` remembers."""

    def __init__(self, case: Case, text: str, results: Results) -> None:
        self.case = case
        self._results = results
        self._given = {"model": str(model_path(case.model)), "text": text, "generate": case.generate}
        self._given |= {"threads": case.threads, "budget": case.budget, "resident": case.resident}

    def pairs(self, n: int) -> Iterator[tuple[dict, dict]]:
        """Yield the figures of llama.cpp and of edgekv, measured now or before."""
        for pair in range(n):
            sides = (self._stock, self._ours)
            runs = {side: side(pair) for side in (sides if pair % 2 == 0 else sides[::-1])}
            yield runs[self._stock], runs[self._ours]

    def _stock(self, pair: int) -> dict:
        return self._remembered("stock", pair, self._run_stock)

    def _run_stock(self) -> dict:
        if self.case.fork is not None:
            return run_fork(self.case.fork, self._given, self.case.repack)
        return run_stock(self.case.peer, self._given)

    def _ours(self, pair: int) -> dict:
        if self.case.other is not None:
            return self._remembered("other", pair, lambda: run_stock(self.case.other, self._given))
        return self._remembered("edgekv", pair, lambda: self._run_edgekv(self._stock(0)["peak"]))

    def _remembered(self, side: str, pair: int, run: Callable[[], dict]) -> dict:
        config = asdict(self.case) | {"side": side, "pair": pair}
        found = self._results.get(config)
        if found is None:
            found = run()
            self._results.add(config, found)
        return found

    def _run_edgekv(self, stock_peak: int) -> dict:
        share = self.case.share
        while True:
            ours = run_edgekv(self._given | {"memory": int(share * stock_peak)})
            if "required" not in ours:
                return ours | {"share": round(share, 2)}
            share = max(share + SHARE_STEP, SHARE_STEP * math.ceil(ours["required"] / stock_peak / SHARE_STEP))


def speed(run: dict, figure: str, clock: int, generate: int) -> float:
    """Tokens a second of a run. clock: 0 = wall, 1 = processor"""
    if figure == "plain":
        begin, end = (run.get("plain") or run)["times"][:2]
        return (run.get("plain") or run)["tokens"] / (end[clock] - begin[clock])
    i = FIGURES.index(figure)
    n_tokens = (run["tokens"], generate)[i]
    return n_tokens / (run["times"][i + 1][clock] - run["times"][i][clock])


def row_of(case: Case, pairs: list[tuple[dict, dict]]) -> list[object]:
    """Return the row of a table for some pairs of a case."""
    meant = targets(model_path(case.model), case.length, case.instructions, case.fork is not None)
    decides = int(case.threads == 1)  # the clock
    row: list[object] = [Path(case.model).name, f"{case.length:,}", case.threads or "default", len(pairs)]
    for figure in FIGURES:
        wall, processor = (
            programs.median(
                [
                    speed(ours, figure, clock, case.generate) / speed(stock, figure, clock, case.generate)
                    for stock, ours in pairs
                ]
            )
            for clock in (0, 1)
        )
        ours = programs.median([speed(ours, figure, decides, case.generate) for _, ours in pairs])
        row += [
            f"{ours:.1f}",
            f"{processor:.2f}",
            f"{wall:.2f}",
            _verdict((wall, processor)[decides], meant.get(figure)),
        ]
    peak = programs.median([ours["peak"] / stock["peak"] for stock, ours in pairs])
    return [*row, f"{peak:.2f}", pairs[-1][1].get("setting", "")]


def _verdict(ratio: float, meant: float | None) -> str:
    return "" if meant is None else f"{meant:.1f} {'met' if ratio >= meant else 'MISSED'}"


HEADER = ("model", "tokens", "threads", "pairs", "read tok/s", "x processor", "x wall", "meant")
HEADER += ("gen tok/s", "x processor", "x wall", "meant", "plain tok/s", "x processor", "x wall", "meant")
HEADER += ("x peak", "edgekv's setting")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer = parser.add_mutually_exclusive_group(required=True)
    peer.add_argument("--peer", help="the Python that has llama-cpp-python")
    peer.add_argument("--fork", help="the program that fork_llama.cpp was compiled to")
    parser.add_argument("--repack", action="store_true", help="the fork repacks weights as they load")
    parser.add_argument("--other", help="a Python with another llama-cpp-python, in place of edgekv")
    parser.add_argument("--results", type=Path, required=True, help="a file (JSON lines) of all runs, which resumes")
    parser.add_argument("--model", action="append", dest="models", help=f"repeatable (default: {', '.join(MODELS)})")
    parser.add_argument(
        "--length", action="append", dest="lengths", type=int, help="tokens; repeatable (default: 1000)"
    )
    parser.add_argument("--threads", action="append", type=int, help="repeatable (default: what each takes)")
    parser.add_argument("--book", type=Path, help="a long text in UTF-8 (default: generated prose)")
    parser.add_argument("--generate", type=int, default=48, help="tokens")
    parser.add_argument("--share", type=float, default=0.75, help="edgekv's ceiling, of llama.cpp's peak")
    parser.add_argument("--budget", type=int, help="cells of edgekv (default: what the ceiling leaves)")
    parser.add_argument("--resident", type=float, help="share of edgekv's layers in memory (default: its choice)")
    parser.add_argument("--instructions", help="edgekv's set of instructions (EDGEKV_INSTRUCTIONS)")
    parser.add_argument("--pairs", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Measure pairs, and print a row for each case that is done."""
    args = parse()
    if args.instructions is not None:
        os.environ["EDGEKV_INSTRUCTIONS"] = args.instructions
    lengths = args.lengths or [1000]
    book = None if args.book is None else prose.read_book(args.book)
    names = ("generate", "share", "budget", "resident", "instructions", "peer", "other", "fork", "repack")
    shared = {name: getattr(args, name) for name in names}
    shared["library"] = hashlib.sha256(library_path().read_bytes()).hexdigest()[:12]
    rows = []
    with Results(args.results) as results:
        for model in args.models or MODELS:
            with prose.vocabulary(str(model_path(model))) as vocabulary:
                texts = prompts(vocabulary, book, lengths)
            for length in lengths:
                for threads in args.threads or [None]:
                    case = Case(model=model, length=length, threads=threads, **shared)
                    rows.append(row_of(case, list(Measurement(case, texts[length], results).pairs(args.pairs))))
                    print(f"done: {model}, {length:,} tokens, {rows[-1][2]} threads", file=sys.stderr)
    programs.print_table(HEADER, rows)


if __name__ == "__main__":
    main()
