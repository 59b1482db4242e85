"""Random programs of four sessions over one loop, whose steps and messages are interleaved on purpose.

Claim (bench/RESULTS.md): in every program each session says and holds what it does alone.

No thread is there: whoever waits for an answer makes the loop step, and between any two steps another session may go
on. So a reply is left, cancelled or interrupted at every point of a step, by its own feeds counted, while others read,
reply, go back, save and load. Some programs close the runtime in their midst. Each session then does the same alone.

The program ends with status 1 if a session differs, or if an error comes that is not the caller's.

    python tests/stress/interleavings.py --programs 100
    scripts/test_sanitized.sh thread --programs 10000
"""

from __future__ import annotations

import argparse
import collections
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import edgekv
from edgekv import engines
from edgekv.binding.model import Model
from edgekv.errors import SessionError
from edgekv.generation.sampler import GREEDY
from edgekv.loop.loop import Loop
from edgekv.loop.loop_messages import CLOSED, Abort, Raised, Stop
from edgekv.loop.open_reply import Post
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

SETTINGS = {"memory": "1TiB", "budget": 48, "block": 16, "recent": 8, "threads": 1, "repack": False}
POLICIES = ("keydiff", "h2o", "snapkv(window=8)")
N_SESSIONS = 4
MOST_OPERATIONS = 4
TEXTS = ("one two three four five six seven", "red green blue white black brown", "north south east west")
CLOSING_EVERY = 10
TICK_S = 1e-6
NESTED = 2  # sessions that go on within the wait of another, at most


class Answer:
    """A box that the answer to a message comes to. Who waits for it makes the loop step."""

    def __init__(self, channel: SteppedLoop) -> None:
        self._channel = channel
        self.answers: list[object] = []

    def get(self) -> Any:
        self._channel.work_until(self.answers)
        (answer,) = self.answers
        if isinstance(answer, Raised):
            raise answer.error
        return answer


class SteppedLoop:
    """A loop that steps when a client waits. clock: moves by what the loop waits

    between: called between two steps; client: who posts messages
    """

    worker_pid, alive = None, True
    newest: SteppedLoop

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.now = 0.0
        loop._clock = loop._turns._clock = lambda: self.now
        self.between: Callable[[], None] = lambda: None
        self.client = 0
        SteppedLoop.newest = self

    @property
    def loaded(self) -> Any:
        return self.loop.engine.loaded

    def post(self, message: object) -> Answer:
        answer = Answer(self)
        if self.loop.engine.closed:
            answer.answers.append(None if isinstance(message, Stop) else Raised(SessionError(CLOSED)))
        else:
            self.loop.take(Post(message, answer.answers.append, self.client))
        return answer

    request = post

    def ask(self, message: object) -> Any:
        return self.post(message).get()

    def look(self, number: int, name: str) -> Any:
        return getattr(self.loop.conversation(number), name)

    def work_until(self, answers: list[object]) -> None:
        while not answers:
            self.between()
            if answers:
                return
            wait = self.loop.step()
            assert wait is not None or answers, "the loop waits for a message, and its client for an answer"
            self.now += (wait or 0.0) + TICK_S

    def close(self) -> None:
        self.between = lambda: None
        self.ask(Stop())

    drop = close


class Operation(NamedTuple):
    """Something that a session does.

    text: that it reads; n_pieces: pieces of a reply that it takes, or tokens to go back by
    way: how a reply is left
    at: the feed of the reply at which it is cancelled or interrupted
    """

    kind: str
    text: str
    n_pieces: int
    way: str
    at: int


def any_operation(rng: random.Random) -> Operation:
    kind = rng.choice(["reply"] * 5 + ["read", "rewind", "save", "snapshot"])
    way = rng.choice(("end", "close", "drop", "throw", "cancel", "cancel at", "interrupt at"))
    return Operation(kind, rng.randint(1, 8) * rng.choice(TEXTS), rng.randint(1, 6), way, rng.randint(1, 8))


class LeftError(Exception):
    """Thrown into a reply."""


class Client:
    """One session's program, which goes on for one operation or piece at a time.

    seen: all that it said and held
    """

    def __init__(self, runtime: edgekv.Runtime, operations: list[Operation], folder: Path) -> None:
        self.seen: list[object] = []
        self._runtime = runtime
        self._channel = SteppedLoop.newest
        self._file = folder / f"{id(self)}.session"
        self.session = runtime.session(history=True)
        self.number = self.session._conversation.number
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
        if self._at is None or self.session._conversation.served.state.block_loop.cache is not cache:
            return
        if self.session._conversation.served.state.is_loaded:
            self._n_fed += 1

    def disturb(self) -> None:
        """Cancel or interrupt the reply if it is time and its client waits. Called between two steps, whoever waits."""
        reply = self._channel.loop._reply_of(self.session._conversation.served)
        if self._at is None or self._n_fed < self._at[0] or reply is None or reply.answer is None:
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
            self._look()
        self.session.close()

    def _look(self) -> None:
        session = self.session
        kept = session.kept_positions(1, 1).tolist()
        self.seen.append((session.n_past, session.n_cells, kept, "".join(session.text()), session.stats.finish_reason))

    def _reply(self, operation: Operation) -> Iterator[str]:
        pieces, way = [], operation.way
        self._n_fed, self._at = 0, (operation.at, way) if way.endswith("at") else None
        reply = self.session.chat(operation.text, max_tokens=operation.n_pieces + 2, sampling=GREEDY, allow_loops=True)
        try:
            for piece in reply:
                pieces.append(piece)
                yield "piece"
                if len(pieces) == operation.n_pieces and way in ("close", "drop", "throw", "cancel"):
                    break
        except KeyboardInterrupt:
            pieces.append("interrupted")
        self._at = None
        if way == "cancel":
            self.session.cancel()
            pieces += reply
        elif way == "throw":
            with suppress(LeftError):
                reply.throw(LeftError)
        elif way == "close":
            reply.close()
        del reply
        self.seen.append(pieces)

    def _read(self, operation: Operation) -> Iterator[str]:
        self.session.read(operation.text)
        yield "read"

    def _rewind(self, operation: Operation) -> Iterator[str]:
        self.session.rewind(max(0, self.session.n_past - operation.n_pieces))
        yield "rewind"

    def _save(self, operation: Operation) -> Iterator[str]:
        self.session.save(self._file)
        yield "save"
        session = self._runtime.load_session(self._file, instead_of=self.session)
        self.session = session

    def _snapshot(self, operation: Operation) -> Iterator[str]:
        snapshot = self.session.snapshot()
        yield "snapshot"
        self.session.read(operation.text)
        yield "read"
        self.session.restore(snapshot)


class Programs:
    """Runs programs over runtimes with a slot or several."""

    def __init__(self, model: Path, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self.counts: collections.Counter[str] = collections.Counter()
        self._open = lambda **options: edgekv.Runtime(model, **(SETTINGS | options))

    def run(self, number: int) -> None:
        """Run a program, and each of its sessions alone. Raises AssertionError if one differs."""
        rng = self._rng
        options = {"policy": POLICIES[number % len(POLICIES)], "parallel": 1 + number // len(POLICIES) % 3}
        plans = [[any_operation(rng) for _ in range(rng.randint(1, MOST_OPERATIONS))] for _ in range(N_SESSIONS)]
        with self._open(**options) as runtime:
            together = [Client(runtime, plan, self._folder) for plan in plans]
            self._interleave(together, closing=number % CLOSING_EVERY == 0)
        with self._open(**options) as runtime:
            for client, plan in zip(together, plans, strict=True):
                alone = Client(runtime, plan, self._folder)
                self._interleave([alone], closing=False)
                found, expected = client.seen, alone.seen[: len(client.seen)]
                assert found == expected, f"{plan} {options}: {found} is not {expected}"
                self.counts["compared"] += len(client.seen)
                self.counts.update(f"{it.kind} {it.way}" if it.kind == "reply" else it.kind for it in plan)

    def _interleave(self, clients: list[Client], *, closing: bool) -> None:
        """Have clients go on in any order, and one within the wait of another. closing: close the runtime meanwhile"""
        rng, channel = self._rng, SteppedLoop.newest
        depth = 0
        left = rng.randint(1, 40) if closing else -1

        def between() -> None:
            nonlocal depth
            if len(clients) > 1 and depth < NESTED and rng.random() < 0.2:
                depth += 1
                try:
                    rng.choice(clients).go_on()
                finally:
                    depth -= 1
            for client in clients:
                client.disturb()
            for client in clients:
                client.interrupt()

        decode = channel.loaded.decoder.decode

        def decode_and_note(feeds: list[Any]) -> list[int]:
            rows = decode(feeds)
            for feed, client in itertools.product(feeds, clients):
                client.note_feed(feed.cache)
            return rows

        channel.loaded.decoder.decode = decode_and_note
        channel.between = between
        going = list(clients)
        while going:
            client = rng.choice(going)
            if not client.go_on():
                going.remove(client)
            left -= 1
            if left == 0:
                channel.between = lambda: None
                return
        channel.between = lambda: None


def run(n: int, seed: int) -> collections.Counter[str]:
    """Run programs; returns how much they did. Raises AssertionError."""
    import served  # noqa: F401  (lets clients look behind sessions)

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Model, "is_end", return_value=False),  # random weights may end a reply at any token
        mock.patch.object(engines, "LoopThread", SteppedLoop),
    ):
        model = make_tiny(Path(folder, "tiny.gguf"), n_layer=2, n_ctx_train=2048)
        found = Programs(model, Path(folder), random.Random(seed))
        for number in range(n):
            found.run(number)
    return found.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    counts = run(options.programs, options.seed)
    print(f"{options.programs} programs: {dict(counts)}; nothing wrong")
    programs.write_json(options.json, dict(counts))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
