"""Damaged model files: each is refused with a typed error, or loaded and asked for two tokens; none ends the host.

Claim (bench/RESULTS.md): of 10,000 damaged model files none crashes or hangs the process.

Files are made from tiny models of several architectures, vocabularies and kinds of cache, each from its own number, in
the ways of `mutations.py`. A process opens them one after the other; where one ends it, another goes on behind. The
program fails where a file crashes, hangs, raises anything but edgekv's own errors, or takes more memory than any sound
one could.

    python tests/stress/fuzz.py --files 2000
    python tests/stress/fuzz.py --first 1234 --files 1 --keep damaged.gguf
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import mutations

import edgekv
from edgekv.memory.process import peak_resident_bytes
from edgekv.testing import programs
from edgekv.testing.models.families import FAMILIES, make_family
from edgekv.testing.models.tiny import make_tiny

HANGS_AFTER_S = 10
# An abort of ggml starts a debugger for its backtrace.
QUIET = {**os.environ, "GGML_NO_BACKTRACE": "1"}
MAX_PEAK_BYTES = 256 << 20
# Families with many layers, which take long to write and say nothing that others do not.
LARGE = ("exaone4", "gemma3n")
OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 8, "threads": 1, "allow_beyond_trained": True}


def make_bases(folder: Path) -> list[Path]:
    """The sound models that are damaged."""
    kinds = itertools.product(("llama", "qwen2", "qwen3", "gemma"), ("bpe", "spm"), ("F32", "Q8_0"))
    models = [
        make_tiny(folder / f"{a}-{t}-{q}.gguf", architecture=a, tokenizer=t, quantization=q, n_layer=1, vocab_size=320)
        for a, t, q in kinds
    ]
    layers = {"alike": {"n_layer": 3}, "free": {"n_layer": 4, "layer_heads": ((4, 2), (4, 0), (0, 0), (8, 4))}}
    models += [
        make_tiny(folder / f"deci-{name}.gguf", architecture="deci", head_dim=16, vocab_size=320, **arguments)
        for name, arguments in layers.items()
    ]
    return models + [make_family(folder / f"{name}.gguf", name) for name in FAMILIES if name not in LARGE]


def make_damaged(number: int, bases: list[Path]) -> tuple[str, bytes]:
    """The file of a number, and the kind of its damage."""
    rng = random.Random(number)
    mutate = mutations.KINDS[number % len(mutations.KINDS)]
    return mutate.__name__, mutate(rng, rng.choice(bases).read_bytes())


def open_one(path: Path) -> str:
    """Open a file and answer; returns what became of it."""
    try:
        with edgekv.Runtime(path, **OPTIONS) as runtime, runtime.session() as session:
            # In the middle, a byte that is in no vocabulary but as a byte.
            for _ in session.chat("The old house \x01 by the river", max_tokens=2):
                pass
    except edgekv.EdgeKVError as error:
        return type(error).__name__
    except Exception as error:
        return f"untyped {type(error).__name__}: {error}"[:200]
    return "loaded"


def open_many(first: int, n: int, folder: Path) -> None:
    """Open the files of some numbers, in this process, which ends with a file that hangs."""
    bases = sorted(folder.glob("*.gguf"))
    path = folder / "damaged"
    for number in range(first, first + n):
        kind, raw = make_damaged(number, bases)
        path.write_bytes(raw)
        print(number, kind, end=" ", flush=True)
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        outcome = open_one(path)
        faulthandler.cancel_dump_traceback_later()
        print(peak_resident_bytes(), outcome, flush=True)


def outcomes(first: int, n: int, folder: Path, program: str | Path = __file__) -> Iterator[tuple[int, str, int, str]]:
    """Number, kind, peak in bytes so far and outcome of every file, each opened in a process apart from this one.

    program: opens them; its options are those of this one
    """
    number, end = first, first + n
    while number < end:
        command = [
            sys.executable,
            str(program),
            "--first",
            str(number),
            "--files",
            str(end - number),
            "--open",
            str(folder),
        ]
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=QUIET, text=True, check=False)
            errors.seek(0)
            last_words = errors.read()
        reached = number
        for opened, kind, peak, outcome in re.findall(r"^(\d+) (\w+) (?:(\d+) (.+))?", child.stdout, re.MULTILINE):
            reached = int(opened) + 1
            if not outcome:
                print(f"--- {opened}: status {child.returncode}\n{last_words[-2000:]}", file=sys.stderr)
                outcome = "hung" if "Timeout (" in last_words else "crashed"
            yield int(opened), kind, int(peak or 0), outcome
        if reached == number:
            sys.exit(f"no file could be opened: {last_words}")
        number = reached


def read_arguments(doc: str | None) -> argparse.Namespace:
    """The options of a program that damages files; `open` names the folder of one that opens them for another."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--keep", type=Path, help="write the first file here, and open nothing")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def report(kinds: Iterable[str], opened: Iterable[tuple[int, str, int, str]], failures: Sequence[str]) -> None:
    """Print what became of the files, and end the program: with status 1 where one failed or took too much memory.

    kinds: of damage, by name; opened: as `outcomes` gives them; failures: outcomes that no file may have
    """
    started, peak = time.perf_counter(), 0
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    bad = []
    for number, kind, n_bytes, outcome in opened:
        name = outcome.split()[0]  # what is untyped goes on with the error
        counts[kind][name] += 1
        peak = max(peak, n_bytes)
        if name in failures:
            bad.append(f"{number} ({kind}): {outcome}")

    errors = sorted({outcome for counter in counts.values() for outcome in counter if outcome.endswith("Error")})
    columns = [*errors, "loaded", *failures]
    total = sum(counts.values(), Counter())
    programs.print_table(
        ["damage", "files", *columns],
        [
            [kind, counter.total(), *(counter[column] for column in columns)]
            for kind, counter in [*counts.items(), ("all", total)]
        ],
    )
    print(f"{time.perf_counter() - started:.0f} s; peak of a process {peak / programs.MIB:.0f} MiB", *bad, sep="\n")
    sys.exit(bool(bad) or peak > MAX_PEAK_BYTES)


def main() -> None:
    options = read_arguments(__doc__)
    if options.open is not None:
        open_many(options.first, options.files, options.open)
        return
    with tempfile.TemporaryDirectory() as name:
        bases = make_bases(Path(name))
        if options.keep is not None:
            options.keep.write_bytes(make_damaged(options.first, sorted(bases))[1])
            return
        opened = outcomes(options.first, options.files, Path(name))
        report([mutate.__name__ for mutate in mutations.KINDS], opened, ("untyped", "crashed", "hung"))


if __name__ == "__main__":
    main()
