"""A long text is read with an archive, in a control group without swap: on a disk, and on one that fills.

Claim (bench/RESULTS.md): 200,000 tokens stay below plan and ceiling, and a disk that fills ends no reply.

    python tests/stress/long_archive.py
    python tests/stress/long_archive.py --model smollm2-135m-instruct --tokens 7500 --memory 256MiB --disk 64MiB

A question follows each piece of the text. The group may hold as much as the ceiling, with the pages of the archive that
are not written out yet. The disk that fills is a file system in memory, which the group counts, too. It needs root.

Predicted: nothing is killed, peaks are below plan and ceiling, and on the disk that fills what is forgotten is said.
Each question recalls, but maybe the first one: where heads share cells, one of them may still hold all of the text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import edgekv
from edgekv.memory.sizes import MIB, parse_size
from edgekv.testing import programs
from edgekv.testing.limited_group import limited_group
from edgekv.testing.models.tiny import make_tiny

PIECES = 10
WORDS = ("the", "old", "house", "by", "river", "stood", "empty", "since", "flood", "of", "that", "year")


def text_of(first: int, n_words: int) -> str:
    """Words of a text from a place on, with numbers that come once."""
    return "".join(f"{WORDS[i * i % len(WORDS)]} {i} " for i in range(first, first + n_words))


def run_case(case: dict[str, object]) -> dict[str, object]:
    """Read and ask in this process; what it held, and what replies said of the archive."""
    options = {"memory": case["memory"], "archive": "16GiB", "swap_dir": case["folder"], "threads": 1}
    with edgekv.Runtime(case["model"], budget=256, block=128, **options) as runtime, runtime.session() as session:
        started, failure, recalled, n_read = time.perf_counter(), "", [], 0
        for i in range(PIECES):
            while session.n_past < case["tokens"] * (i + 1) / PIECES:
                session.read(text_of(n_read, 100))
                n_read += 100
            "".join(session.chat("What stood by the river?", max_tokens=16, ignore_eos=True, allow_loops=True))
            recalled.append(session.stats.recalled_cells)
            failure = failure or session.stats.archive_failure
        stats, plan = session.stats, runtime.plan
        return {
            "tokens": session.n_past,
            "seconds": time.perf_counter() - started,
            "peak": stats.peak_rss_bytes,
            "planned": plan.peak_bytes,
            "bytes a token": plan.archive_token_bytes,
            "archived": stats.archived_tokens,
            "forgotten": stats.forgotten_tokens,
            "questions that recalled": sum(n > 0 for n in recalled),
            "failure": failure,
        }


@contextmanager
def full_disk(n_bytes: int) -> Iterator[str]:
    """A folder with so much room. Raises CalledProcessError if nothing can be mounted."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "edgekv", folder], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)


def measured(case: dict[str, object], limit: int) -> dict[str, object]:
    """The figures of a case in a control group of its own."""
    with limited_group(limit) as group:
        command = group.entered([sys.executable, __file__, "--case"])
        done = subprocess.run(command, input=json.dumps(case), stdout=subprocess.PIPE, text=True, check=False)
        figures = {"status": done.returncode, "killed": group.n_killed, "group": group.peak_bytes, "limit": limit}
        return figures | (json.loads(done.stdout) if done.returncode == 0 else {})


def is_good(found: dict[str, object], ceiling: int, *, fills: bool) -> bool:
    """Return True if all is as predicted."""
    if found["status"] or found["killed"] or not found["peak"] <= found["planned"] <= ceiling:
        return False
    said = "No space left on device; tokens from " in found["failure"] and found["forgotten"] > 0
    return found["questions that recalled"] >= PIECES - 1 and (said if fills else not found["failure"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: a tiny model of random weights")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--memory", default="64MiB")
    parser.add_argument("--disk", default="16MiB", help="room on the disk that fills")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    ceiling, disk = parse_size(options.memory), parse_size(options.disk)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        model = options.model or str(make_tiny(Path(folder, "tiny.gguf"), n_ctx_train=1 << 18))
        case = {"model": model, "tokens": options.tokens, "memory": options.memory}
        wide = measured(case | {"folder": folder}, ceiling)
        with full_disk(disk) as narrow:
            full = measured(case | {"folder": narrow}, ceiling + disk)
    in_mib = ("peak", "planned", "group", "limit")
    rows = [
        [name, *(f"{it[name] / MIB:.1f} MiB" if name in in_mib else it[name] for it in (wide, full))]
        for name in dict.fromkeys([*wide, *full])
        if name in wide and name in full and name != "failure"
    ]
    programs.print_table(["", "a disk", "one that fills"], rows)
    print(f"said of the archive: {wide.get('failure')!r}; on the disk that fills: {full.get('failure')!r}")
    programs.write_json(options.json, {"disk": wide, "full disk": full})
    sys.exit(not (is_good(wide, ceiling, fills=False) and is_good(full, ceiling, fills=True)))


if __name__ == "__main__":
    programs.run(main, run_case)
