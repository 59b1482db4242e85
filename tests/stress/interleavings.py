"""Random programs of four sessions over one loop, whose steps and messages are interleaved on purpose.

Claim (bench/RESULTS.md): in every program each session says and holds what it does alone, and what its operations make
of it by a model in plain Python; and what holds for cells, archives and slots whatever the scores are holds at every
look.

No thread is there: whoever waits for an answer makes the loop step, and between any two steps another session may go
on. So a reply is left, collected, cancelled or interrupted at every point of a step, by its own feeds counted, and some
clients never come back, while others read, reply, go back, save and load. Some clients wait for no answer, and come
back for it. Some programs close the runtime in their midst. Every session of a program also goes alone. That is done
once for sessions that several programs have. In one kind of runtime nothing is evicted, and each session ends as a
fresh one that reads its log. After each program nothing may be left of its sessions, not even an open file.

The program ends with status 1 if something differs, or if an error comes that is not the caller's.

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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))
import served  # noqa: F401  (lets checks look behind sessions)
from session_checks import check_at_rest, check_loop
from session_programs import MOST_OPERATIONS, Client, Operation, any_operation
from stepped_loop import SteppedLoop

import edgekv
from edgekv import engines
from edgekv.binding.model import Model
from edgekv.conversations import local_engine
from edgekv.memory import process
from edgekv.planning.plan import Parts
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

SETTINGS = {"memory": "1TiB", "budget": 24, "block": 16, "recent": 8, "repack": False}
POLICIES = ("keydiff", "h2o", "snapkv(window=8)")
ROOMY = {"budget": 480, "policy": "keydiff", "parallel": 2, "prompt_lookup": "off"}  # nothing is evicted
DRAFTING = "keydiff"  # the policy beside which replies have drafts
N_SESSIONS = 4
MOST_SLOTS = 3
CLOSING_EVERY = 10
KNOWN = 64  # sessions whose programs others take, for every kind of runtime
NEW_SHARE = 0.1  # share of the sessions that get a new program
NESTED = 2  # sessions that go on within the wait of another, at most


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

    def check(self) -> int:
        """Check that nothing is left of the sessions that the shared runtime had; return how many files are open."""
        gc.collect()
        return check_at_rest(self.shared._engine.channel.loop)  # type: ignore[attr-defined]

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
        self._n_files = 0  # open between two programs
        self._settings = []
        for n_slots in range(1, MOST_SLOTS + 1):
            for policy in POLICIES:
                options = {"policy": policy, "parallel": n_slots, "threads": n_threads}
                options["prompt_lookup"] = "on" if policy == DRAFTING else "off"
                self._settings.append(Setting(model, folder, options))
        self._settings.append(Setting(model, folder, ROOMY | {"threads": n_threads}))
        for setting in self._settings:
            closing.enter_context(setting.shared)

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
        del client, clients
        n_files = setting.check()
        self._n_files = n_files if number < len(self._settings) else self._n_files
        assert n_files <= self._n_files, f"{n_files} files are open, not {self._n_files}"


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
        check_loop(channel.loop)
        n_parts = None if n_parts is None else n_parts - 1
    channel.between, channel.note_feed = lambda: None, lambda cache: None


def run(n: int, seed: int, seconds: float = math.inf, n_threads: int = 1) -> collections.Counter[str]:
    """Run n programs, or as many as the seconds allow; returns how much they did. Raises AssertionError."""
    end = time.monotonic() + seconds
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
    main()
