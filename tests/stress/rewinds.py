"""Go back to random tokens of a long session, and compare it with one that read no further.

Claim (bench/RESULTS.md): the log is that of the text, the cells are to the bit those of the session that read no
further, and no token is decoded but those of the block that is cut.

The session reads a text once, in parts, and a snapshot brings it back after each rewind. Those first made return to
checkpoints, which a rewind removes if they lie after it. The other session reads the same text up to each place, in
ascending order.

The program ends with status 1 if anything differs.

    python tests/stress/rewinds.py --book war-and-peace.txt
    python tests/stress/rewinds.py --book war-and-peace.txt --made --tokens 4000 --rewinds 50
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import edgekv
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

BUDGET, BLOCK = 256, 128
N_PARTS = 40  # parts that the text is read in; each leaves a checkpoint
CHARS_PER_TOKEN = 6  # at most, on average


def cells_of(session: edgekv.Session) -> bytes:
    """Return a sum of all that the cells of a session hold and carry."""
    block_loop = session._conversation._swapped_in()  # type: ignore[attr-defined]
    return hashlib.sha256(block_loop.cache.snapshot().data).digest()


def log_of(session: edgekv.Session) -> list[int]:
    log: list[int] = session._conversation.state.history.log.read(0, 1 << 30).tolist()  # type: ignore[attr-defined]
    return log


def expected(runtime: edgekv.Runtime, tokens: list[int], places: list[int]) -> dict[int, bytes]:
    """Return the cells of a session that reads the first tokens, by their number."""
    found = {}
    with runtime.session(history=True) as session:
        for n in sorted(places):
            whole = n - n % BLOCK
            if whole > session.n_past:  # what is read in whole blocks is as if it was read at once
                session.prefill_prefix(tokens[:whole])
            before = session.snapshot()
            if n > whole:
                session.prefill_prefix(tokens[:n])
            found[n] = cells_of(session)
            session.restore(before)
    return found


def check(session: edgekv.Session, tokens: list[int], n: int, cells: bytes) -> int:
    """Go back to the first n tokens; returns how many were read again. Raises AssertionError."""
    session.rewind(n)
    assert session.n_past == n, f"{session.n_past} tokens after a rewind to {n}"
    assert log_of(session) == tokens[:n], f"the log of {n} tokens is another"
    assert session.stats.read_tokens <= n % BLOCK, f"{session.stats.read_tokens} tokens of {n} were read again"
    assert cells_of(session) == cells, f"the cells of {n} tokens are others"
    return session.stats.read_tokens


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--made", action="store_true", help="a tiny model of random weights")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rewinds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import served  # noqa: F401  (lets it look behind sessions)

    rng = random.Random(options.seed)
    with ExitStack() as made:
        model = options.model
        if options.made:
            folder = made.enter_context(tempfile.TemporaryDirectory())
            model = make_tiny(Path(folder, "tiny.gguf"), n_ctx_train=4096)
        runtime = made.enter_context(
            edgekv.Runtime(
                model,
                memory="100%",
                budget=BUDGET,
                block=BLOCK,
                threads=options.threads or 1,
                reposition="always",  # "auto" turns keys from where a part is known to pass the trained context
            )
        )
        text = options.book.read_text(encoding="utf-8")[: CHARS_PER_TOKEN * options.tokens]
        tokens = runtime.tokenize(text)[: options.tokens]
        assert len(tokens) == options.tokens, f"the book has {len(tokens)} tokens only"
        places = [rng.randrange(1, options.tokens) for _ in range(options.rewinds)]
        session = made.enter_context(runtime.session(history=True))
        part = max(1, options.tokens // N_PARTS // BLOCK) * BLOCK
        started = time.monotonic()
        for end in range(part, options.tokens + part, part):
            session.prefill_prefix(tokens[:end])
        read_s = time.monotonic() - started
        whole = session.snapshot()
        cells = expected(runtime, tokens, places)
        n_read, seconds = 0, 0.0
        for n in places:
            started = time.monotonic()
            n_read += check(session, tokens, n, cells[n])
            seconds += time.monotonic() - started
            session.restore(whole)
    print(
        f"{options.rewinds} rewinds in {options.tokens:,} tokens (seed {options.seed}): logs and cells are right; "
        f"{n_read / options.rewinds:.1f} tokens read again each, {seconds / options.rewinds:.2f} s; "
        f"reading all took {read_s:.1f} s"
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
