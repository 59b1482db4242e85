"""Replies that are left while another session is at work: no cell is touched without its turn, and no session is lost.

Claim (bench/RESULTS.md): 10,000 replies are left at moments that are chosen, and every session says and holds what it
does alone.

Two sessions with logs share a runtime. In each round one gives a reply, which pauses after some pieces. The other one
is held before a call on the cells. Then the first reply is left: closed, dropped, dropped by the thread of the other
session, ended by an error, or cancelled. Both sessions are looked at. In half of the rounds the other one is released
before, so that both work at once. Every twentieth round closes the runtime while a reply that is left writes its
checkpoint.

The program ends with status 1 if a thread calls a cache without a turn, or frees one that another thread calls.

    python tests/stress/left_replies.py
    python tests/stress/left_replies.py --rounds 200 --parallel 2 --seed 7
    scripts/test_sanitized.sh thread --rounds 10000
"""

from __future__ import annotations

import argparse
import collections
import functools
import random
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import edgekv
from edgekv.binding.cache import Cache
from edgekv.binding.model import Model
from edgekv.generation.sampler import GREEDY
from edgekv.sessions import turn_queue
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

LIMIT_S = 300
SETTINGS = {
    "memory": "1TiB",
    "budget": 48,
    "block": 16,
    "recent": 8,
    "threads": 1,
    "policy": "keydiff",
    "repack": False,
}
MOST_PIECES = 4
TEXTS = ("one two three four five six seven", "red green blue white black brown")
HELD = ("feed", "feed_together", "compact", "copy_snapshot", "restore", "restore_rows", "clear", "n_past")
CLOSING_EVERY = 20


class LeftError(Exception):
    """Thrown into a reply."""


class Watched:
    """Every call on a cache of this process: who calls, and a thread that is held before one."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.queue: turn_queue.TurnQueue | None = None  # the queue of the open runtime
        self.reached = threading.Event()  # the thread is held, or done
        self.release = threading.Event()
        self._held: tuple[threading.Thread, str] | None = None
        self._n_before = 0
        for name, member in list(vars(Cache).items()):
            if not name.startswith("_") and name != "share_by":
                setattr(Cache, name, self._watch(name, member))

    def hold(self, thread: threading.Thread, name: str, n_before: int) -> None:
        """Hold a thread before its call of this name that comes after n_before others."""
        self.reached.clear()
        self.release.clear()
        self._held, self._n_before = (thread, name), n_before

    def _watch(self, name: str, member: object) -> object:
        if isinstance(member, property):
            return property(self._watch(name, member.fget))
        if isinstance(member, staticmethod):
            return staticmethod(self._watch(name, member.__func__))

        @functools.wraps(member)
        def call(*arguments, **options):
            if name == "close":
                self._check_freed(arguments[0])
            else:
                self._check(name)
                self._wait(name)
            return member(*arguments, **options)

        return call

    def _check(self, name: str) -> None:
        """Note a call by a thread that has no turn, as all have between opening a runtime and closing it."""
        queue, me = self.queue, threading.get_ident()
        if queue is not None and not any(ticket.thread == me for ticket in queue.present()):
            self.wrong.append(f"{name} without a turn, in {threading.current_thread().name}")

    def _check_freed(self, cache: Cache) -> None:
        if self._held is not None and not self.release.is_set() and self.reached.is_set():
            self.wrong.append(f"freed while {self._held[0].name} was in {self._held[1]}")
            self.release.set()

    def _wait(self, name: str) -> None:
        if self._held != (threading.current_thread(), name):
            return
        self._n_before -= 1
        if self._n_before < 0:
            self.reached.set()
            assert self.release.wait(LIMIT_S)
            self._held = None


class Rounds:
    """Two sessions of a runtime, each with a text that it goes back to."""

    def __init__(self, model: Path, parallel: int, rng: random.Random, watched: Watched) -> None:
        self._options = {"model": model, "parallel": parallel, **SETTINGS}
        self._rng, self._watched = rng, watched
        self.counts: collections.Counter[str] = collections.Counter()
        self._open()
        self._alone = {(i, n): self._left_alone(i, n) for i in range(2) for n in range(1, MOST_PIECES + 1)}

    def _open(self) -> None:
        self.runtime = edgekv.Runtime(**self._options)
        self._watched.queue = self.runtime._engine.turn_queue
        self._sessions = [self.runtime.session(history=True) for _ in TEXTS]
        for session, text in zip(self._sessions, TEXTS, strict=True):
            session.read(8 * text)
        self._starts = [session.n_past for session in self._sessions]

    def close(self) -> None:
        self._watched.queue = None
        self.runtime.close()

    def _reply(self, i: int, progress: object = None) -> object:
        text = 2 * TEXTS[i]
        return self._sessions[i].chat(text, max_tokens=20, sampling=GREEDY, allow_loops=True, progress=progress)

    def _begun(self, i: int, n_pieces: int) -> list[object]:
        """Return a reply that has paused after some pieces, in a list that alone has it."""
        self._sessions[i].rewind(self._starts[i])
        pieces = self._reply(i)
        for _ in range(n_pieces):
            next(pieces)
        return [pieces]

    def _seen(self, i: int) -> tuple[object, ...]:
        """Return what a session has seen and holds, and what it says next."""
        session = self._sessions[i]
        seen = session.n_past, session.n_cells, "".join(session.text()), session.kept_positions(1, 1).tolist()
        more = list(session.chat("And?", max_tokens=3, sampling=GREEDY, allow_loops=True))
        return *seen, more, session.n_past

    def _left_alone(self, i: int, n_pieces: int) -> tuple[object, ...]:
        self._begun(i, n_pieces).clear()
        return self._seen(i)

    def left(self, way: str, held: str, n_before: int, *, raced: bool) -> None:
        """Leave a reply of the first session while the second is held. raced: it is released before"""
        i = self._rng.randrange(2)
        n_pieces, n_others = (self._rng.randint(1, MOST_PIECES) for _ in range(2))
        reply, others = self._begun(i, n_pieces), []

        def answer() -> None:
            try:
                drop = (lambda _: reply.clear()) if way == "drop in the other thread" else None
                self._sessions[1 - i].rewind(self._starts[1 - i])
                pieces = self._reply(1 - i, drop)
                others.extend(next(pieces) for _ in range(n_others))
                pieces.close()
            except BaseException as error:
                self._watched.wrong.append(f"the other session: {error!r}")
            finally:
                self._watched.reached.set()

        other = threading.Thread(target=answer, name="the other session")
        self._watched.hold(other, held, n_before)
        other.start()
        assert self._watched.reached.wait(LIMIT_S)
        self.counts["held" if other.is_alive() else "done before"] += 1
        if raced:
            self._watched.release.set()
        self._leave(self._sessions[i], reply, way)
        self._look(i)
        self._watched.release.set()
        other.join(LIMIT_S)
        assert not other.is_alive(), "a session hangs"
        self._leave(self._sessions[i], reply, "close")
        for j, n in ((i, n_pieces), (1 - i, n_others)):
            if self._seen(j) != self._alone[j, n]:
                self._watched.wrong.append(f"session {j} is not what it is alone: {way}, held in {held}")

    def _leave(self, session: edgekv.Session, reply: list[object], way: str) -> None:
        if not reply or way == "drop in the other thread":
            return
        if way == "cancel":
            session.cancel()
            list(reply[0])
        elif way == "throw":
            with suppress(LeftError):
                reply[0].throw(LeftError)
        elif way == "close":
            reply[0].close()
        reply.clear()

    def _look(self, i: int) -> None:
        """Ask whatever needs no turn."""
        for session in self._sessions:
            _ = session.n_past, session.n_cells, session.stats, session.system
        with suppress(edgekv.SessionError):  # the reply is not left yet
            _ = list(self._sessions[i].turns()), self._sessions[i].common_prefix_length([1, 2, 3])
        self.runtime.session(history=True).close()

    def closed(self) -> None:
        """Close the runtime while a reply that is left is held before it writes its checkpoint."""
        watched, closing_waits = self._watched, self.runtime._engine.turn_queue.changed
        reply = self._begun(0, self._rng.randint(1, MOST_PIECES))
        leaving = threading.Thread(target=self._leave, args=(self._sessions[0], reply, "close"), name="the reply")
        closing = threading.Thread(target=self.close, name="the close")
        watched.hold(leaving, "copy_snapshot", 0)
        leaving.start()
        assert watched.reached.wait(LIMIT_S)
        wait = closing_waits.wait

        def waits(timeout: float | None = None) -> bool:
            watched.release.set()
            return wait(timeout)

        closing_waits.wait = waits
        closing.start()
        for thread in (leaving, closing):
            thread.join(LIMIT_S)
            assert not thread.is_alive(), f"{thread.name} hangs"
        self.counts["closed"] += 1
        self._open()

    def run(self, n: int) -> None:
        ways = ("close", "drop", "drop in the other thread", "throw", "cancel")
        for number in range(1, n + 1):
            if number % CLOSING_EVERY == 0:
                self.closed()
            else:
                self.left(
                    ways[number % len(ways)],
                    self._rng.choice(HELD),
                    self._rng.randrange(3),
                    raced=self._rng.random() < 0.5,
                )
            if self._watched.wrong:
                self._watched.release.set()
                sys.exit(f"round {number}: " + "; ".join(dict.fromkeys(self._watched.wrong)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--parallel", type=int, default=1, help="sessions that have cells at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    Model.is_end = lambda model, token: False  # random weights may end a reply at any token
    turn_queue.IDLE_S = 0.001  # who pauses is passed at once
    watched = Watched()
    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda it: (watched.wrong.append(f"in a finalizer: {it.exc_value!r}"), unraisable(it))
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny(Path(folder, "tiny.gguf"), n_layer=2, n_ctx_train=2048)
        rounds = Rounds(model, options.parallel, random.Random(options.seed), watched)
        rounds.run(options.rounds)
        rounds.close()
    print(f"{options.rounds} rounds: {dict(rounds.counts)}; nothing wrong")
    programs.write_json(options.json, dict(rounds.counts))


if __name__ == "__main__":
    main()
