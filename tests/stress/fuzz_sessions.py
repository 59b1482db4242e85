"""Damaged session files: each is refused with a typed error, or is a sound session; none ends the host.

Claim (bench/RESULTS.md): of 5,000 damaged files none crashes or hangs the process, none whose checksum is wrong is gone
on with, and none that is gone on with lets a token see rows that another session left in the cache.

Files of several policies, cache types and kinds of model are damaged in the ways of `session_damage.py`, each from its
own number. A process loads them one after the other, and goes on with those that load. It loads
these twice, once over the rows of each of two other sessions: what the next tokens say, and all that the cells hold
after an eviction, has to be the same, bit for bit.

    python tests/stress/fuzz_sessions.py --files 5000
    python tests/stress/fuzz_sessions.py --first 1234 --files 1 --keep damaged.session
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
from edgekv.testing.models.families import make_family
from edgekv.testing.models.tiny import make_tiny

OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16}
BASES = (
    ("tiny", {"policy": "h2o+critical", "prompt_lookup": "on"}),
    ("tiny", {"policy": "snapkv+ada", "kv_type": "q8_0", "reposition": "never", "allow_beyond_trained": True}),
    ("tiny", {"policy": "keydiff", "kv_type": "q4_0"}),
    ("gemma3", {"policy": "keydiff"}),
    ("lfm2", {"policy": "snapkv"}),
    ("gpt-oss", {"policy": "keydiff"}),
)
LOGGED = (0, 1, 4)  # the bases with a token log
WINDOWED = (3, 5)
HANGS_AFTER_S = 2 * fuzz.HANGS_AFTER_S  # a file is loaded four times, and gone on with
ALSO = {session_damage.lying_windows: WINDOWED}  # what has such a thing to damage
OTHERS = ("A storm came over the hills at night and took the roof. ", "Seven ships left for the islands before noon. ")
UNSUMMED = {damage.__name__ for damage in session_damage.UNSUMMED}


def make_models(folder: Path) -> None:
    """The models of BASES, and a sound session of each base."""
    make_tiny(folder / "tiny.gguf", n_layer=2, head_dim=64)
    for name in ("gemma3", "lfm2", "gpt-oss"):
        make_family(folder / f"{name}.gguf", name)
    for i, (name, options) in enumerate(BASES):
        with open_base(folder, name, options) as runtime, runtime.session("Be brief.", history=i in LOGGED) as session:
            session.read("The old house by the river stood empty. " * 20)
            list(session.chat("Who lived there?", max_tokens=9))
            session.save(folder / f"{i}.session")


def open_base(folder: Path, name: str, options: dict[str, object]) -> edgekv.Runtime:
    return edgekv.Runtime(folder / f"{name}.gguf", **(OPTIONS | options))


def make_damaged(number: int, folder: Path) -> tuple[int, str, bytes]:
    """The file of a number, its base, and the kind of its damage."""
    kind = session_damage.kind_of(number)
    bases = ALSO.get(kind, range(len(BASES)))
    base = bases[number // len(session_damage.KINDS) % len(bases)]
    return base, kind.__name__, session_damage.damaged((folder / f"{base}.session").read_bytes(), number)


def sees_others(runtime: edgekv.Runtime, path: Path) -> bool:
    """Return whether the reply after a file depends on the rows that another session left in the cache."""
    found = []
    for other in OTHERS:
        with runtime.session() as session:
            session.read(other * 12)  # more tokens than there are cells, those of windows too
        with runtime.load_session(path):
            found.append(_followed(runtime))
    return found[0] != found[1]


def _followed(runtime: edgekv.Runtime) -> list[object]:
    """The logits of tokens that follow, and all cells after evictions; or where they end in an error."""
    block_loop, found = runtime.block_loop, []
    block_loop.log = None
    try:
        for n in (1, 3, 80):
            block_loop.read(range(3, 3 + n), lambda n_read: True)
            found += [runtime.context.logits_array().tobytes(), block_loop.cache.snapshot().data.tobytes()]
    except edgekv.EdgeKVError as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


def load_one(runtime: edgekv.Runtime, path: Path) -> str:
    """Load a file and go on with it, as far as that goes; returns what became of it."""
    try:
        runtime.load_session(path).close()
        if sees_others(runtime, path):
            return "foreign"
        with runtime.load_session(path) as session, suppress(edgekv.EdgeKVError):
            list(session.chat("And then?", max_tokens=2))
            list(session.chat("Why is that? " * 30, max_tokens=2))  # evicts
            "".join(session.text())  # raises for a session without a history
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
            faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
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
        fuzz.report(kinds, opened, ("wrong", "foreign", "untyped", "crashed", "hung"))


if __name__ == "__main__":
    main()
