"""Random programs of four sessions over one loop, whose steps and messages are interleaved on purpose.

Claim (bench/RESULTS.md): in every program each session says and holds what it does alone.

No thread is there: whoever waits for an answer makes the loop step, and between any two steps another session may go
on. So a reply is left, collected, cancelled or interrupted at every point of a step, by its own feeds counted, and some
clients never come back, while others read, reply, go back, save and load. Some clients wait for no answer, and come
back for it. Some programs close the runtime in their midst. Every session of a program also goes alone. That is done
once for sessions that several programs have.

The program ends with status 1 if a session differs, or if an error comes that is not the caller's.

    TMPDIR=/dev/shm python tests/stress/interleavings.py --programs 100
    scripts/test_sanitized.sh thread --threads 2 --programs 1000
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import edgekv
from edgekv import engines
from edgekv.binding.model import Model
from edgekv.conversations import local_engine
from edgekv.errors import SessionError
from edgekv.generation.sampler import GREEDY
from edgekv.loop.loop import Loop
from edgekv.loop.loop_messages import CLOSED, Abort, Raised, Stop
from edgekv.loop.open_reply import Post
from edgekv.memory import process
from edgekv.planning.plan import Parts
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

SETTINGS = {"memory": "1TiB", "budget": 24, "block": 16, "recent": 8, "repack": False}
POLICIES = ("keydiff", "h2o", "snapkv(window=8)")
DRAFTING = "keydiff"  # the policy beside which replies have drafts
N_SESSIONS = 4
MOST_OPERATIONS = 3
TEXTS = ("one two three ", "red green blue ", "north south ")
MOST_SLOTS = 3
CLOSING_EVERY = 10
KNOWN = 64  # sessions whose programs others take, for every kind of runtime
NEW_SHARE = 0.1  # share of the sessions that get a new program
TICK_S = 1e-6
NESTED = 2  # sessions that go on within the wait of another, at most
LEAVING = ("close", "drop", "collect", "throw", "cancel", "vanish")  # ways to leave a reply after some pieces


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
    note_feed: called with the cache of each feed that was decoded
    """

    worker_pid, alive = None, True

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.now = 0.0
        loop._slots._clock = loop._replies._clock = lambda: self.now
        self.between: Callable[[], None] = lambda: None
        self.note_feed: Callable[[object], None] = lambda cache: None
        self.client = 0
        self._decode = self.loaded.decoder.decode
        self.loaded.decoder.decode = self._decode_and_note

    @property
    def loaded(self) -> Any:
        return self.loop.engine.loaded

    def post(self, message: object, client: int | None = None) -> Answer:
        answer = Answer(self)
        if self.loop.engine.closed:
            answer.answers.append(None if isinstance(message, Stop) else Raised(SessionError(CLOSED)))
        else:
            self.loop.take(Post(message, answer.answers.append, self.client if client is None else client))
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

    def _decode_and_note(self, feeds: list[Any]) -> list[int]:
        rows = self._decode(feeds)
        for feed in feeds:
            self.note_feed(feed.cache)
        return rows


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
        if self._at is not None:
            state = self.session._conversation.served.state
            self._n_fed += state.is_loaded and state.block_loop.cache is cache

    def disturb(self) -> None:
        """Cancel or interrupt the reply if it is time and its client waits. Called between two steps, whoever waits."""
        if self._at is None or self._n_fed < self._at[0]:
            return
        reply = self._channel.loop._replies.of(self.session._conversation.served)
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
            self._look()
        self.session.close()

    def _look(self) -> None:
        session = self.session
        kept = tuple(session.kept_positions(1, 1).tolist())
        self.seen.append((session.n_past, session.n_cells, kept, "".join(session.text()), session.stats.finish_reason))

    def _reply(self, operation: Operation) -> Iterator[str]:
        pieces, way = [], operation.way
        self._n_fed, self._at = 0, (operation.at, way) if way.endswith("at") else None
        options = {"max_tokens": operation.n_pieces + 2, "sampling": GREEDY, "allow_loops": True}
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
            pieces.append("interrupted")
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

    def _read(self, operation: Operation) -> Iterator[str]:
        self.session.read(operation.text)
        yield "read"

    def _rewind(self, operation: Operation) -> Iterator[str]:
        self.session.rewind(max(0, self.session.n_past - operation.n_pieces))
        yield "rewind"

    def _save(self, operation: Operation) -> Iterator[str]:
        self.session.save(self._file)
        yield "save"
        self.session = self._runtime.load_session(self._file, instead_of=self.session)
        self._file.unlink()

    def _snapshot(self, operation: Operation) -> Iterator[str]:
        snapshot = self.session.snapshot()
        yield "snapshot"
        self.session.read(operation.text)
        yield "read"
        self.session.restore(snapshot)


class Setting:
    """A kind of runtime, one that programs share, and sessions that have gone alone in it: their programs, and what
    each has seen.
    """

    def __init__(self, model: Path, folder: Path, options: dict[str, Any]) -> None:
        self._model, self._folder, self._options = model, folder, options
        self.shared = self.open()
        self._known: list[tuple[list[Operation], list[object]]] = []

    def open(self) -> edgekv.Runtime:
        return edgekv.Runtime(self._model, swap_dir=self._folder, **(SETTINGS | self._options))

    def client(self, runtime: edgekv.Runtime, operations: list[Operation]) -> Client:
        return Client(runtime, operations, self._folder)

    def any_session(self, rng: random.Random) -> tuple[list[Operation], list[object]]:
        """Return the program of a session, and what it sees alone."""
        if len(self._known) == KNOWN and rng.random() >= NEW_SHARE:
            return rng.choice(self._known)
        drafts = self._options["prompt_lookup"] == "on"
        operations = [any_operation(rng, drafts=drafts) for _ in range(rng.randint(1, MOST_OPERATIONS))]
        alone = self.client(self.shared, operations)
        interleave(self.shared, [alone], rng)
        self._known = [*self._known[1 - KNOWN :], (operations, alone.seen)]
        return self._known[-1]


class Programs:
    """Runs programs over runtimes with a slot or several. counts: how much they did"""

    def __init__(self, model: Path, folder: Path, rng: random.Random, closing: ExitStack, n_threads: int) -> None:
        self._rng = rng
        self.counts: collections.Counter[str] = collections.Counter()
        self._settings = []
        for n_slots in range(1, MOST_SLOTS + 1):
            for policy in POLICIES:
                options = {"policy": policy, "parallel": n_slots, "threads": n_threads}
                options["prompt_lookup"] = "on" if policy == DRAFTING else "off"
                self._settings.append(Setting(model, folder, options))
                closing.enter_context(self._settings[-1].shared)

    def run(self, number: int) -> None:
        """Run a program. Raises AssertionError if a session differs from itself alone."""
        rng, setting = self._rng, self._settings[number % len(self._settings)]
        sessions = [setting.any_session(rng) for _ in range(N_SESSIONS)]
        if number % CLOSING_EVERY == 0:
            with setting.open() as runtime:
                clients = [setting.client(runtime, operations) for operations, _ in sessions]
                interleave(runtime, clients, rng, n_parts=rng.randint(1, 40))
        else:
            clients = [setting.client(setting.shared, operations) for operations, _ in sessions]
            interleave(setting.shared, clients, rng)
        for client, (operations, seen) in zip(clients, sessions, strict=True):
            assert client.seen == seen[: len(client.seen)], (
                f"program {number}, {operations}: {client.seen} is not {seen}"
            )
            self.counts["compared"] += len(client.seen)
            self.counts.update(f"{it.kind} {it.way}" if it.kind == "reply" else it.kind for it in operations)
            self.counts["awaited replies"] += sum(it.awaits and it.kind == "reply" for it in operations)


def interleave(runtime: edgekv.Runtime, clients: list[Client], rng: random.Random, n_parts: int | None = None) -> None:
    """Have clients go on in any order, and one within the wait of another. n_parts: leave them after so many parts"""
    channel: SteppedLoop = runtime._engine.channel  # type: ignore[assignment]
    depth = 0

    def between() -> None:
        nonlocal depth
        if len(clients) > 1 and depth < NESTED and rng.random() < 0.2:
            depth += 1
            try:
                rng.choice(clients).go_on()
            finally:
                depth -= 1
        if rng.random() < 0.02:
            gc.collect(0)
        for client in clients:
            client.disturb()
        for client in clients:
            client.interrupt()

    def note_feed(cache: object) -> None:
        for client in clients:
            client.note_feed(cache)

    channel.between, channel.note_feed = between, note_feed
    going = list(clients)
    while going and n_parts != 0:
        client = rng.choice(going)
        if not client.go_on():
            going.remove(client)
        n_parts = None if n_parts is None else n_parts - 1
    channel.between, channel.note_feed = lambda: None, lambda cache: None


def run(n: int, seed: int, seconds: float = math.inf, n_threads: int = 1) -> collections.Counter[str]:
    """Run n programs, or as many as the seconds allow; returns how much they did. Raises AssertionError."""
    end = time.monotonic() + seconds
    import served  # noqa: F401  (lets clients look behind sessions)

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Model, "is_end", nothing),  # random weights may end a reply at any token
        mock.patch.object(Model, "piece", remembered(Model.piece)),
        mock.patch.object(engines, "LoopThread", SteppedLoop),
        mock.patch.object(local_engine, "plan_to_load", functools.cache(local_engine.plan_to_load)),
        mock.patch.object(process, "_status", nothing),  # reads a file of the system for every block
        mock.patch.object(Parts, "total", 0),
        ExitStack() as closing,
    ):
        model = make_tiny(Path(folder, "tiny.gguf"), n_embd=32, n_head=2, n_ff=32, n_ctx_train=2048)
        found = Programs(model, Path(folder), random.Random(seed), closing, n_threads)
        closing.enter_context(collected_on_purpose())
        for number in range(n):
            if time.monotonic() > end:
                break
            found.run(number)
            found.counts["programs"] += 1
            gc.collect()
    return found.counts


def nothing(*_arguments: object) -> int:
    """Return 0, in place of a method. A mock would note each call."""
    return 0


def remembered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that keeps its results for all objects, as those of a run have one model."""
    results: dict[object, Any] = {}

    def kept(owner: object, *arguments: object, **options: object) -> Any:
        key = arguments, *options.items()
        if key not in results:
            results[key] = method(owner, *arguments, **options)
        return results[key]

    return kept


@contextmanager
def collected_on_purpose() -> Iterator[None]:
    """Have garbage collected only if a program does it, and quickly: not within a step."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then, whatever is left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="threads that decode a batch")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)  # also if it fails
    counts = run(options.programs, options.seed, options.seconds, options.threads)
    print(f"{dict(counts)}; nothing wrong")
    programs.write_json(options.json, dict(counts))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
