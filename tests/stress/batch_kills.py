"""A batch that is killed with -9 twice, and one that two workers of Dask share: the results of one process, each once.

Claim (bench/RESULTS.md): 200 requests over 20 documents have 200 results, each once, and the same ones however the work
was interrupted or shared; each worker reads a document once.

    python tests/stress/batch_kills.py --book BOOK
    python tests/stress/batch_kills.py --book BOOK --documents 4 --questions 3

Predicted: the killed batch reads 20 documents, and one more for each kill; two workers read 20, or 21 where one helps
the other at the end.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from edgekv.testing import programs

QUESTIONS = ("Who is mentioned", "What happens", "Where is it", "What is said", "What is new", "Why", "When is it")


def requests(book: str, n_documents: int, n_questions: int, n_words: int) -> list[dict[str, Any]]:
    """Questions about documents that lie one after the other in a book; those of each document far from each other."""
    words = book.split()
    documents = [" ".join(words[i * n_words : (i + 1) * n_words]) for i in range(n_documents)]
    if not documents[-1]:
        sys.exit(f"the book has {len(words)} words, and {n_documents * n_words} are needed; give a longer one")
    found = []
    for j in range(n_questions):
        for i, document in enumerate(documents):
            content = f"{document}\n\n{QUESTIONS[j % len(QUESTIONS)]} in part {j + 1} of the text?"
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0.7}
            found.append({"custom_id": f"{i}-{j}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    return found


def note_beginnings(path: str) -> None:
    """From now on, have this process note every beginning that it reads in a file."""
    from edgekv import Session

    prefill_prefix = Session.prefill_prefix

    @functools.wraps(prefill_prefix)
    def noted(session: Session, tokens: Any, **options: Any) -> None:
        with open(path, "a") as file:
            file.write(json.dumps([os.getpid(), list(tokens)]) + "\n")
        prefill_prefix(session, tokens, **options)

    Session.prefill_prefix = noted  # type: ignore[method-assign]


def readings(path: Path) -> tuple[int, int]:
    """Beginnings that were read, and how many of them a second time by the same process."""
    lines = path.read_text().splitlines() if path.exists() else []
    counts = Counter(lines)
    return len(lines), sum(n - 1 for n in counts.values())


def rows(path: Path) -> list[dict[str, Any]]:
    """Results in the order of their custom_ids, without their times."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for row in found:
        if row["response"] is not None:
            row["response"]["body"].pop("created", None)
    return sorted(found, key=lambda row: str(row["custom_id"]))


def started(folder: Path, name: str, options: list[str]) -> subprocess.Popen[bytes]:
    """`edgekv batch` in a process that notes what it reads."""
    paths = [str(folder / "requests.jsonl"), "-o", str(folder / f"{name}.jsonl")]
    command = [sys.executable, __file__, "--answer", str(folder / f"{name}.read"), "batch", *paths, *options]
    return subprocess.Popen(command)


def kill_after(process: subprocess.Popen[bytes], path: Path, n_results: int) -> None:
    """Kill a process as soon as there are so many results."""
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < n_results):
        time.sleep(0.01)
    process.kill()
    process.wait()


def main() -> None:
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--questions", type=int, default=10, help="for each document")
    parser.add_argument("--words", type=int, default=400, help="of a document")
    parser.add_argument("--budget", type=int, default=256)
    options = parser.parse_args()
    given = [
        "--policy",
        "keydiff",
        "--budget",
        str(options.budget),
        "--threads",
        str(options.threads or 1),
        "--memory",
        "256MiB",
    ]
    given += [] if options.model is None else ["--model", options.model]

    from distributed import Client, LocalCluster

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = requests(options.book.read_text(), options.documents, options.questions, options.words)
        (folder / "requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in wanted))
        assert started(folder, "alone", given).wait() == 0
        for n in (len(wanted) // 3, 2 * len(wanted) // 3):
            kill_after(started(folder, "killed", given), folder / "killed.jsonl", n)
        assert started(folder, "killed", given).wait() == 0
        with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            client.run(note_beginnings, str(folder / "shared.read"))
            assert started(folder, "shared", [*given, "--cluster", cluster.scheduler_address]).wait() == 0
        alone = rows(folder / "alone.jsonl")
        figures = []
        for run in ("alone", "killed", "shared"):
            found = rows(folder / f"{run}.jsonl")
            n_read, n_again = readings(folder / f"{run}.read")
            figures.append(
                {
                    "run": run,
                    "requests": len(wanted),
                    "results": len(found),
                    "custom_ids": len({row["custom_id"] for row in found}),
                    "as alone": sum(a == b for a, b in zip(alone, found, strict=False)),
                    "documents read": n_read,
                    "by one process twice": n_again,
                }
            )
    programs.print_table(list(figures[0]), [list(line.values()) for line in figures])
    programs.write_json(options.json, figures)
    same = all(line["requests"] == line["results"] == line["custom_ids"] == line["as alone"] for line in figures)
    sys.exit(not same or any(line["by one process twice"] for line in figures))


if __name__ == "__main__":
    if "--answer" in sys.argv[:2]:
        from edgekv.cli.main import main as edgekv_command

        note_beginnings(sys.argv[2])
        sys.argv[1:3] = []
        sys.exit(edgekv_command())
    main()
