"""Sessions saved by processes that are killed at random moments: a whole file each time, and nothing left for ever.

Claim (bench/RESULTS.md): of 100 saves that are killed with -9 each leaves the old or the new file whole, and the next
save removes what they left half-written.

A process goes on with a session, saves it over the last one, and is killed while it does. Half of them save to a disk
that is made slow, so that more of the kills come while a file is half-written.

    python tests/stress/save_kills.py
    python tests/stress/save_kills.py --kills 500 --seed 7
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import edgekv
from edgekv.binding.snapshot_meta import CachedSource
from edgekv.store.atomic_write import SUFFIX
from edgekv.store.snapshot_file import open_snapshot_file
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

OPTIONS = {"memory": "4GiB", "budget": 1024, "block": 64, "threads": 1, "allow_beyond_trained": True}
LONGEST_S = {False: 0.02, True: 0.2}  # seconds from the beginning of a save to the kill; True: on a slow disk
PAUSE_S = 0.05  # pause of a slow disk after each piece of the cells


def save_again_and_again(model: Path, path: Path, *, slowly: bool) -> None:
    """Read a little more, save, say so; until somebody ends it."""
    if slowly:
        quickly = CachedSource.pieces

        def pieces(cells):  # type: ignore[no-untyped-def]
            for piece in quickly(cells):
                time.sleep(PAUSE_S)
                yield piece

        CachedSource.pieces = pieces  # type: ignore[method-assign]
    with edgekv.Runtime(model, **OPTIONS) as runtime, runtime.load_session(path) as session:
        while True:
            session.read("another word")
            print("saving", session.n_past, flush=True)
            session.save(path)
            print("saved", session.n_past, flush=True)


def killed(model: Path, path: Path, n_saves: int, delay: float, *, slowly: bool) -> tuple[bool, int, int]:
    """Kill such a process so long after it began a save.

    Returns whether it was saving, and the tokens of the last save that was done, 0 = none, and of the one begun last.
    """
    command = [sys.executable, __file__, "--save", str(model), str(path), *(["--slowly"] if slowly else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2 * n_saves - 1)]
        time.sleep(delay)
        process.kill()
        lines += process.stdout.read().splitlines()
    said = [line.split() for line in lines if len(line.split()) == 2]
    last = said[-1]
    done = [int(n) for word, n in said if word == "saved"]
    return last[0] == "saving", done[-1] if done else 0, int(last[1])


def tokens_of(path: Path) -> int:
    """Tokens of a session whose file is whole. Raises SessionFileError."""
    with open_snapshot_file(path) as file:
        return int(file.header.values["saved_with"]["n_past"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--save", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--slowly", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save is not None:
        save_again_and_again(*options.save, slowly=options.slowly)
        return

    rng = random.Random(options.seed)
    counts = dict.fromkeys(("kills", "while saving", "whole", "old", "new", "left half-written", "left for ever"), 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "sessions")
        folder.mkdir()
        model, path = make_tiny(Path(name, "tiny.gguf"), n_layer=4, n_ctx_train=8192), folder / "a.session"
        with edgekv.Runtime(model, **OPTIONS) as runtime:
            with runtime.session() as session:
                session.read("word " * 3000)
                session.save(path)
                before = session.n_past
            for i in range(options.kills):
                slowly = i % 2 == 1
                delay = rng.uniform(0, LONGEST_S[slowly])
                saving, done, running = killed(model, path, rng.randint(1, 3), delay, slowly=slowly)
                left = sum(it.name.endswith(SUFFIX) for it in folder.iterdir())
                found = tokens_of(path)
                whole = found in (done or before, running)
                counts["kills"] += 1
                counts["while saving"] += saving
                counts["whole"] += whole
                counts["old"] += found != running
                counts["new"] += found == running
                counts["left half-written"] += left
                with runtime.load_session(path) as session:  # it goes on, and saves
                    session.save(path)
                counts["left for ever"] += sum(it.name.endswith(SUFFIX) for it in folder.iterdir())
                before = found
    programs.print_table(list(counts), [list(counts.values())])
    programs.write_json(options.json, [counts])
    sys.exit(counts["whole"] != counts["kills"] or counts["left for ever"] > 0)


if __name__ == "__main__":
    main()
