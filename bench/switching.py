"""Many sessions of one runtime that take turns: memory, answers, and what a switch takes.

Claims (bench/RESULTS.md): the process never holds more than its ceiling; every session says what it says alone; a
switch takes less than 5 % of the time of a block of 128 tokens where sessions rest in memory, and less than 10 % with
the disk.

Predicted before it was measured: a session that has read its fill has 256 to 384 cells, of 23,040 bytes and 12 bytes
of positions for each of 90 heads: 6.2 to 9.3 MB. One copy out and one in at 4 GB/s are 3 to 5 ms. Of a block of 128
tokens, 500 ms on one thread, that is 0.6 to 1 %. The disk is written and read once more and summed up twice, at 1 GB/s:
20 to 35 ms in all, 4 to 7 %.

Each session reads a passage of its own. Then they answer in turn, in rounds: some of them while they rest in memory,
all of them while most rest on the disk, and each of them alone. Every way is a fresh process.

    python bench/switching.py --book BOOK --threads 1
    python bench/switching.py --book BOOK --threads 1 --sessions 8 --rounds 3
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import edgekv
from edgekv.generation.sampler import GREEDY
from edgekv.memory import process
from edgekv.testing import programs

PASSAGE_CHARS = 1500
QUESTION = "What happens next?"
FEW = 6  # sessions that rest in memory
LIMITS = {"in memory": 0.05, "with the disk": 0.10}  # largest time of a switch / time of a block


def passages(book: Path, n: int) -> list[str]:
    text = book.read_text(encoding="utf-8-sig")
    step = max(1, (len(text) - PASSAGE_CHARS) // n)
    return [text[i * step : i * step + PASSAGE_CHARS] for i in range(n)]


def run_case(case: dict[str, object]) -> dict[str, object]:
    """All rounds of all sessions in this process: what each said, its switches, and the peak."""
    options = {name: case[name] for name in ("model", "memory", "budget", "threads")} | {
        "policy": "keydiff",
        "block": 128,
        "focus": False,
    }
    texts = passages(Path(case["book"]), case["passages"])[: case["sessions"]]
    said: list[list[str]] = [[] for _ in texts]
    switch_s, block_s = [], []

    def begin(session: edgekv.Session, i: int) -> None:
        session.read(texts[i])
        block_s.append(session.stats.prefill_s / session.stats.read_tokens * 128)

    def answer(session: edgekv.Session, i: int) -> None:
        said[i].append("".join(session.chat(QUESTION, max_tokens=case["tokens"], allow_loops=True, sampling=GREEDY)))
        switch_s.append(session.stats.switch_s)

    with edgekv.Runtime(**options, **case["swap"]) as runtime:
        if case["alone"]:
            for i in range(len(texts)):
                with runtime.session() as session:
                    begin(session, i)
                    for _ in range(case["rounds"]):
                        answer(session, i)
        else:
            sessions = [runtime.session() for _ in texts]
            for i, session in enumerate(sessions):
                begin(session, i)
            for _ in range(case["rounds"]):
                for i, session in enumerate(sessions):
                    answer(session, i)
        return {
            "said": said,
            "switch_s": switch_s,
            "block_s": block_s,
            "peak": process.peak_resident_bytes(),
            "planned": runtime.plan.peak_bytes,
            "ceiling": runtime.plan.ceiling_bytes,
            "session": runtime.plan.session_bytes,
        }


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--swap-memory", default="48MiB", help="of it, for sessions that rest")
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=16, help="of every answer")
    options = parser.parse_args()
    names = ("model", "memory", "budget", "threads", "rounds", "tokens")
    case = {name: getattr(options, name) for name in names} | {"book": str(options.book), "passages": options.sessions}
    few = min(FEW, options.sessions)
    with tempfile.TemporaryDirectory(prefix="edgekv-switching-") as folder:
        ways = {
            "alone": {"alone": True, "sessions": options.sessions, "swap": {}},
            "in memory": {"alone": False, "sessions": few, "swap": {"swap_memory": options.swap_memory}},
            "with the disk": {
                "alone": False,
                "sessions": options.sessions,
                "swap": {"swap_memory": options.swap_memory, "swap_dir": folder},
            },
        }
        found = {name: programs.in_fresh_process(__file__, case | way) for name, way in ways.items()}
    rows, sound = [], True
    for name, result in found.items():
        switch_s, block_s = programs.median(result["switch_s"]), programs.median(result["block_s"])
        alike = sum(a == b for a, b in zip(result["said"], found["alone"]["said"], strict=False))
        sound &= alike == len(result["said"]) and result["peak"] <= result["ceiling"]
        sound &= switch_s <= LIMITS.get(name, 0) * block_s
        rows.append(
            (
                name,
                len(result["said"]),
                alike,
                f"{result['peak'] / programs.MIB:.1f}",
                f"{result['planned'] / programs.MIB:.1f}",
                f"{1000 * switch_s:.1f}",
                f"{1000 * max(result['switch_s']):.1f}",
                f"{1000 * block_s:.0f}",
                f"{100 * switch_s / block_s:.1f} %",
            )
        )
    programs.print_table(
        ["", "sessions", "say what they say alone", "peak MiB", "planned", "switch ms", "at most", "block ms", "share"],
        rows,
    )
    session = found["alone"]["session"] / programs.MIB
    print(
        f"ceiling {options.memory}; a session takes at most {session:.1f} MiB; all as meant: {'yes' if sound else 'no'}"
    )
    programs.write_json(options.json, found)
    sys.exit(not sound)


if __name__ == "__main__":
    programs.run(main, run_case)
