"""The lowest memory limit under which a question about a text is answered: edgekv, llama.cpp, or any command.

Claim (docs/results/memory.md): edgekv answers under at most half of the limit that llama.cpp needs as pip installs it.
The shape of a 0.5B does not: its output matrix stays in memory.

A number is planted in the text, and the question asks for it. Each run is a fresh process in a control group of its own
without swap, which is killed beyond its limit. The pages of files that it reads count, too, so the model is a copy that
nobody else reads, and its pages leave memory before each run. Linux takes mapped weights out of memory if it must, and
reads them again for every batch. So a limit is enough only if the program ends, says the number, and takes at most
`--slower` times its time without a limit. Limits are halved down to a difference of `--step`.

edgekv gets the limit as its ceiling (`--memory`), and chooses all else itself. llama-cpp-python gets a context that
holds the text. `--command` adds a program; it stands for itself, with {model}, {text}, {question} and {limit} replaced.
Random weights say no number, so with `--any-answer` whatever a program says is enough.

    uv venv peer && uv pip install --python peer/bin/python --no-cache llama-cpp-python==0.3.36
    python bench/lowest_limit.py --book novel.txt --peer peer/bin/python
    python bench/lowest_limit.py --book novel.txt --model qwen.gguf --step 32MiB \\
        --command 'llama-cli -m {model} -f {text} -p {question}'
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edgekv.evals import prose
from edgekv.evals.needle import NUMBER
from edgekv.memory.sizes import format_size, parse_size
from edgekv.models.catalog import find_model
from edgekv.testing import programs
from edgekv.testing.limited_run import Run, run_in_group

STOCK = Path(__file__).with_name("stock_answer.py")
FREE_BYTES = 4 << 30  # what {limit} stands for without a limit
ANSWER = 48  # tokens, at most


@dataclass(frozen=True, slots=True)
class Lowest:
    """The lowest limit of one program.

    limit_bytes: the lowest limit that is enough; None = it does not answer without a limit either
    free_bytes: the peak of its group without a limit
    free_s, seconds: time without a limit, and under the lowest one
    """

    program: str
    limit_bytes: int | None
    free_bytes: int
    free_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a text file, and the number that an answer must have; "" = it may say anything."""

    model: Path
    text: Path
    question: str
    number: str

    def filled(self, words: Sequence[str], limit_bytes: int) -> list[str]:
        """Return the words of a command, with what they name in place of the names."""
        values = {"model": self.model, "text": self.text, "question": self.question, "limit": limit_bytes}
        return [word.format(**values) for word in words]

    def run(self, words: Sequence[str], limit_bytes: int | None, at_most_s: float | None) -> Run:
        """Run a program with no page of the model in memory."""
        with self.model.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return run_in_group(self.filled(words, limit_bytes or FREE_BYTES), limit_bytes, at_most_s)

    def flaw(self, run: Run) -> str:
        """Return what a run lacks to count as an answer; "" = nothing."""
        if run.status is None:
            return "too slow"
        if run.status != 0:
            return "killed" if run.status < 0 else f"ended with {run.status}"
        return "" if self.number in run.output.replace(",", "") else "says another thing"


def lowest(program: str, words: Sequence[str], asked: Question, step: int, slower: float) -> Lowest:
    """Halve the limits under which a program answers."""
    free = asked.run(words, None, None)
    found = Lowest(program, None, free.peak_bytes, free.seconds, free.seconds)
    if flaw := asked.flaw(free):
        print(f"{program} without a limit: {flaw}: {(free.output + free.errors)[-300:]!r}", file=sys.stderr)
        return found
    low, high = 0, -(-free.peak_bytes // step)  # both count steps, and `high` of them are enough
    while high - low > 1:
        tried = (low + high) // 2
        run = asked.run(words, tried * step, slower * free.seconds)
        flaw = asked.flaw(run)
        print(f"{program}: {format_size(tried * step)}: {flaw or 'enough'}, {run.seconds:.1f} s", flush=True)
        low, high = (tried, high) if flaw else (low, tried)
        found = found if flaw else replace(found, seconds=run.seconds)
    return replace(found, limit_bytes=high * step)


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=4000, help="length of the text (4000)")
    parser.add_argument("--seed", type=int, default=0, help="draws the passage, the number and its place")
    parser.add_argument("--peer", default=sys.executable, help="a Python that has llama-cpp-python (this one)")
    parser.add_argument("--command", action="append", default=[], help="one more program; repeatable")
    parser.add_argument("--any-answer", action="store_true", help="count every answer, as of random weights")
    parser.add_argument("--step", type=parse_size, default="4MiB", help="difference between limits (4MiB)")
    parser.add_argument("--slower", type=float, default=4.0, help="times the time without a limit, at most (4)")
    options = parser.parse_args()
    threads = str(options.threads or os.cpu_count())
    edgekv = [sys.executable, "-m", "edgekv", "ask", "{question}", "-f", "{text}", "--model", "{model}"]
    edgekv += ["--max-tokens", str(ANSWER), "--memory", "{limit}B", "--threads", threads]
    stock = [options.peer, str(STOCK), "{model}", "{text}", "{question}", threads, str(ANSWER)]
    tried = {
        "edgekv": edgekv,
        "llama-cpp-python": stock,
        **{command: shlex.split(command) for command in options.command},
    }
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        asked = planted(Path(folder), options)
        found = [lowest(name, words, asked, options.step, options.slower) for name, words in tried.items()]
    programs.print_table(
        ("program", "lowest limit", "s", "without a limit", "s"),
        [
            (it.program, _size(it.limit_bytes), f"{it.seconds:.1f}", _size(it.free_bytes), f"{it.free_s:.1f}")
            for it in found
        ],
    )
    ours, peer = found[0].limit_bytes, found[1].limit_bytes
    if ours is not None and peer is not None:
        print(f"edgekv / llama-cpp-python: {ours / peer:.2f}")
    programs.write_json(options.json, [asdict(it) for it in found])


def planted(folder: Path, options: argparse.Namespace) -> Question:
    """Copy the model, write the text with the number in it, and return what is asked."""
    model, text = folder / "model.gguf", folder / "text.txt"
    shutil.copyfile(find_model(options.model), model)
    os.sync()  # pages that are not on the disk yet would stay
    rng = random.Random(options.seed)
    with prose.vocabulary(options.model) as vocabulary:
        passage = prose.passage(vocabulary, prose.read_book(options.book), options.tokens, rng)
    number = NUMBER.draw(rng)
    text.write_text(prose.plant(passage, [(rng.random(), NUMBER.sentence.format(answer=number))]), encoding="utf-8")
    return Question(model, text, NUMBER.question, "" if options.any_answer else number)


def _size(n_bytes: int | None) -> str:
    return "does not answer" if n_bytes is None else format_size(n_bytes)


main()
