"""Random programs of sessions: what each does, part by part."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from expected_log import Said
from session_checks import SessionChecks
from stepped_loop import SteppedLoop

import edgekv
from edgekv.generation.sampler import GREEDY
from edgekv.loop.loop_messages import Abort

TEXTS = ("one two three ", "red green blue ", "north south ")
MOST_OPERATIONS = 3
INTERRUPTED = "interrupted"
LEAVING = ("close", "drop", "collect", "throw", "cancel", "vanish")  # ways to leave a reply after some pieces


class Operation(NamedTuple):
    """Something that a session does.

    text: that it reads; n_pieces: pieces of a reply that it takes, or tokens to go back by
    way: how a reply is left
    at: the feed of the reply at which it is cancelled or interrupted
    awaits: others go on while an answer to it is awaited, as in an event loop
    """

    kind: str
    text: str
    n_pieces: int
    way: str
    at: int
    awaits: bool


def any_operation(rng: random.Random, *, drafts: bool) -> Operation:
    """Return any operation. drafts: replies may have them, so nobody knows how many feeds they take"""
    kind = rng.choice(["reply"] * 5 + ["read", "rewind", "save", "snapshot"])
    way = rng.choice(("end", *(() if drafts else ("cancel at", "interrupt at")), *LEAVING))
    return Operation(
        kind, rng.randint(1, 3) * rng.choice(TEXTS), rng.randint(1, 6), way, rng.randint(1, 8), rng.random() < 0.5
    )


class LeftError(Exception):
    """Thrown into a reply."""


class Client:
    """One session's program, which goes on for one operation or piece at a time.

    seen: all that it said and held
    """

    def __init__(self, runtime: edgekv.Runtime, operations: list[Operation], folder: Path) -> None:
        self.seen: list[object] = []
        self._runtime = runtime
        self._channel: SteppedLoop = runtime._engine.channel  # type: ignore[assignment]
        self._file = folder / f"{id(self)}.session"
        self.session = runtime.session(history=True)
        self.number = self.session._number
        self._checks = SessionChecks(runtime)
        self._steps = self._program(operations)
        self._n_fed = 0
        self._at: tuple[int, str] | None = None
        self._is_at_work = self._is_interrupted = False

    def go_on(self) -> bool:
        """Do the next part; returns False if there is none, or if it is at work."""
        if self._is_at_work:
            return False
        before, self._channel.client, self._is_at_work = self._channel.client, self.number, True
        try:
            return next(self._steps, None) is not None
        finally:
            self._channel.client, self._is_at_work = before, False

    def note_feed(self, cache: object) -> None:
        """Note a feed of some session, after which this one may be cancelled or interrupted."""
        if self._at is not None:
            state = self.session._served.state
            self._n_fed += state.is_loaded and state.block_loop.cache is cache

    def disturb(self) -> None:
        """Cancel or interrupt the reply if it is time and its client waits. Called between two steps, whoever waits."""
        if self._at is None or self._n_fed < self._at[0]:
            return
        reply = self._channel.loop._of(self.session._served)
        if reply is None or reply.answer is None:
            return
        way, self._at = self._at[1], None
        if way == "cancel at":
            self.session.cancel()
        else:
            self._channel.post(Abort(reply.number))  # a client posts this once it is interrupted
            self._is_interrupted = True

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the wait of this client if it is interrupted."""
        if self._is_interrupted and self._channel.client == self.number:
            self._is_interrupted = False
            raise KeyboardInterrupt

    def _program(self, operations: list[Operation]) -> Iterator[str]:
        for operation in operations:
            yield from getattr(self, f"_{operation.kind}")(operation)
            yield "look"
            if operation.way == "vanish" and operation.kind == "reply":
                return
            self._look(may_be_open=operation.way == "collect")
        self._checks.fresh(self.session, self._runtime)
        self.session.close()

    def _look(self, *, may_be_open: bool) -> None:
        session = self.session
        kept = tuple(session.kept_positions(1, 1).tolist())
        self._checks.state(session, may_be_open=may_be_open)
        self.seen.append((session.n_past, session.n_cells, kept, "".join(session.text()), session.stats.finish_reason))

    def _reply(self, operation: Operation) -> Iterator[str]:
        pieces, way = [], operation.way
        most_tokens = operation.n_pieces + 2
        self._n_fed, self._at = 0, (operation.at, way) if way.endswith("at") else None
        options = {"max_tokens": most_tokens, "sampling": GREEDY, "allow_loops": True}
        reply: Any = self.session.chat(operation.text, **options)
        if operation.awaits:
            reply = self.session.events(reply)
        try:
            for event in reply:
                yield "event"
                if not isinstance(event, str):
                    continue
                pieces.append(event)
                if len(pieces) == operation.n_pieces and way in LEAVING:
                    break
        except KeyboardInterrupt:
            pieces.append(INTERRUPTED)
        self._at = None
        if way == "cancel":
            self.session.cancel()
            pieces += [event for event in reply if isinstance(event, str)]
        elif way == "throw":
            with suppress(LeftError):
                reply.throw(LeftError)
        elif way == "close":
            reply.close()
        elif way == "vanish":
            self._left = reply
        elif way == "collect":
            circle = [reply]
            circle.append(circle)  # type: ignore[arg-type]
            del circle
        del reply
        self.seen.append(tuple(pieces))
        if way == "vanish" and len(pieces) == operation.n_pieces:
            return  # its reply is still open
        said = [piece for piece in pieces if piece != INTERRUPTED]
        self._checks.read(self.session, operation.text, Said("".join(said), most_tokens, not said))

    def _read(self, operation: Operation) -> Iterator[str]:
        self.session.read(operation.text)
        self._checks.read(self.session, operation.text)
        yield "read"

    def _rewind(self, operation: Operation) -> Iterator[str]:
        n = max(0, self.session.n_past - operation.n_pieces)
        self.session.rewind(n)
        self._checks.rewind(self.session, n)
        yield "rewind"

    def _save(self, operation: Operation) -> Iterator[str]:
        self.session.save(self._file)
        before = self._checks.state(self.session)
        yield "save"
        self.session = self._runtime.load_session(self._file, instead_of=self.session)
        self._checks.same(self.session, before)
        self._file.unlink()

    def _snapshot(self, operation: Operation) -> Iterator[str]:
        snapshot = self.session.snapshot()
        before, log = self._checks.state(self.session), self._checks.log.copy()
        yield "snapshot"
        self.session.read(operation.text)
        self._checks.read(self.session, operation.text)
        yield "read"
        self.session.restore(snapshot)
        self._checks.log = log
        self._checks.same(self.session, before)
