"""Damaged session files: each is refused with a typed error, or is a sound session; none ends the host.

Claim (CONTRIBUTING.md): of 2,000 damaged session files none crashes or hangs the process, and none whose checksum is
wrong is gone on with.

Files of several policies, cache types and kinds of model are damaged in the ways of `session_damage.py`, each from its
own number. A process loads them one after the other, and goes on with those that load.

    python bench/fuzz_sessions.py --files 2000
    python bench/fuzz_sessions.py --first 1234 --files 1 --keep damaged.session
"""

from __future__ import annotations

import faulthandler
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import fuzz
import session_damage

import edgekv
from edgekv.memory.process import peak_resident_bytes
from edgekv.models.families import make_family
from edgekv.models.tiny import make_tiny

OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16}
BASES = (
    ("tiny", {"policy": "h2o+critical", "speculate": "auto"}),
    ("tiny", {"policy": "snapkv+ada", "kv_type": "q8_0"}),
    ("tiny", {"policy": "keydiff", "kv_type": "q4_0"}),
    ("gemma3", {"policy": "keydiff"}),
    ("lfm2", {"policy": "snapkv"}),
)
LOGGED = (0, 1, 4)  # the bases with a token log
UNSUMMED = {damage.__name__ for damage in session_damage.UNSUMMED}


def make_models(folder: Path) -> None:
    """The models of BASES, and a sound session of each base."""
    make_tiny(folder / "tiny.gguf", n_layer=2, head_dim=64)
    for name in ("gemma3", "lfm2"):
        make_family(folder / f"{name}.gguf", name)
    for i, (name, options) in enumerate(BASES):
        with open_base(folder, name, options) as runtime, runtime.session("Be brief.", log=i in LOGGED) as session:
            session.read("The old house by the river stood empty. " * 20)
            list(session.chat("Who lived there?", max_tokens=9))
            session.save(folder / f"{i}.session")


def open_base(folder: Path, name: str, options: dict[str, object]) -> edgekv.Runtime:
    return edgekv.Runtime(folder / f"{name}.gguf", **(OPTIONS | options))


def make_damaged(number: int, folder: Path) -> tuple[int, str, bytes]:
    """The file of a number, its base, and the kind of its damage."""
    base = number // len(session_damage.KINDS) % len(BASES)
    damage, raw = session_damage.damaged((folder / f"{base}.session").read_bytes(), number)
    return base, damage.__name__, raw


def load_one(runtime: edgekv.Runtime, path: Path) -> str:
    """Load a file and go on with it, as far as that goes; returns what became of it."""
    try:
        with runtime.load_session(path) as session, suppress(edgekv.EdgeKVError):
            list(session.chat("And then?", max_tokens=2))
            list(session.chat("Why is that? " * 30, max_tokens=2))  # evicts
            "".join(session.text())  # of those that have a log
            session.rewind(session.n_past // 2)
            list(session.chat("Who?", max_tokens=2))
    except edgekv.EdgeKVError as error:
        return type(error).__name__
    except Exception as error:
        return f"untyped {type(error).__name__}: {error}"[:200]
    return "loaded"


def load_many(first: int, n: int, folder: Path) -> None:
    """Load the files of some numbers, in this process, which ends with a file that hangs."""
    path = folder / "damaged"
    with ExitStack() as stack:
        runtimes = [stack.enter_context(open_base(folder, *base)) for base in BASES]
        for number in range(first, first + n):
            base, kind, raw = make_damaged(number, folder)
            path.write_bytes(raw)
            print(number, kind, end=" ", flush=True)
            faulthandler.dump_traceback_later(fuzz.HANGS_AFTER_S, exit=True)
            outcome = load_one(runtimes[base], path)
            faulthandler.cancel_dump_traceback_later()
            if outcome == "loaded" and kind in UNSUMMED:
                outcome = "wrong"
            print(peak_resident_bytes(), outcome, flush=True)


def main() -> None:
    options = fuzz.read_arguments(__doc__)
    if options.open is not None:
        load_many(options.first, options.files, options.open)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(folder)
        if options.keep is not None:
            options.keep.write_bytes(make_damaged(options.first, folder)[2])
            return
        opened = fuzz.outcomes(options.first, options.files, folder, __file__)
        kinds = [damage.__name__ for damage in session_damage.KINDS]
        fuzz.report(kinds, opened, ("wrong", "untyped", "crashed", "hung"))


if __name__ == "__main__":
    main()
