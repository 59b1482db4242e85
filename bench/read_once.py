"""A book that is read once and saved, then asked about from new processes: seconds to the first token of each question.

Each question is compared with reading the book anew for it, in seconds of the same machine. Prediction: a question
takes a thousandth of reading 200,000 tokens, since it loads a few MiB and feeds a few tokens.

    python bench/read_once.py --book BOOK --threads 1
    python bench/read_once.py --book BOOK --tokens 4000 --memory 208MiB
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

import edgekv
from edgekv.testing import programs

QUESTIONS = (
    "Who",
    "What",
    "Where",
    "When",
    "Why",
    "How many people",
    "Which town",
    "Whose house",
    "Which month",
    "How",
)


def open_runtime(case: dict[str, object]) -> edgekv.Runtime:
    return edgekv.Runtime(case["model"], memory=case["memory"], threads=case["threads"])  # type: ignore[arg-type]


def read_once(case: dict[str, object]) -> dict[str, object]:
    """Read the book, again and again until there are enough tokens, and save the session."""
    text = Path(str(case["book"])).read_text(encoding="utf-8")
    n_tokens = int(str(case["tokens"]))
    pieces = itertools.cycle(text[i : i + 100_000] for i in range(0, len(text), 100_000))
    with open_runtime(case) as runtime, runtime.session() as session:
        begun = time.perf_counter()
        while session.n_past < n_tokens:
            session.read(next(pieces)[: 5 * (n_tokens - session.n_past)])
        read_s = time.perf_counter() - begun
        begun = time.perf_counter()
        session.save(str(case["path"]))
        save_s = time.perf_counter() - begun
        peak = session.stats.peak_rss_bytes / programs.MIB
        return {"tokens": session.n_past, "read_s": read_s, "save_s": save_s, "peak_mib": peak}


def ask(case: dict[str, object]) -> dict[str, object]:
    """Load the session and say the first token of an answer."""
    with open_runtime(case) as runtime:
        begun = time.perf_counter()
        with runtime.load_session(str(case["path"])) as session:
            loaded_s = time.perf_counter() - begun
            next(iter(session.ask(f"{case['question']}?", max_tokens=8)), None)
            first_s = time.perf_counter() - begun
    return {"question": case["question"], "runtime_s": runtime.load_s, "load_s": loaded_s, "first_s": first_s}


def main() -> None:
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--memory", default="256MiB")
    options = parser.parse_args()
    names = ("model", "book", "tokens", "memory", "threads")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "book.session")
        case = {name: getattr(options, name) for name in names} | {"book": str(options.book), "path": str(path)}
        read = programs.in_fresh_process(__file__, case)
        size = path.stat().st_size / programs.MIB
        asked = [programs.in_fresh_process(__file__, case | {"question": question}) for question in QUESTIONS]
    read_s = float(str(read["read_s"]))
    print(f"{read['tokens']:,} tokens read in {read_s:.0f} s, saved in {read['save_s']:.2f} s, {size:.1f} MiB")
    rows = [
        [
            it["question"],
            *(f"{it[name]:.2f}" for name in ("runtime_s", "load_s", "first_s")),
            f"{float(str(it['first_s'])) / read_s:.5f}",
        ]
        for it in asked
    ]
    programs.print_table(["question", "model loaded s", "session loaded s", "first token s", "of reading anew"], rows)
    programs.write_json(options.json, [read | {"file_mib": size}, *asked])


if __name__ == "__main__":
    programs.run(main, lambda case: ask(case) if "question" in case else read_once(case))
