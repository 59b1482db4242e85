"""A ceiling that moves at random while four sessions read and reply: does memory follow, and is no reply lost?

Claim (docs/results/memory.md): resident memory is below a new ceiling when the move is answered, the peak is never
above the highest ceiling that was allowed, and no reply is lost. With an archive the same facts are found as without
moves.

In this process, isolated, and at a server, each in a fresh process. With `--facts` sessions of the default model read
texts with a number planted in each, and are asked for it, with moves and without.

    python tests/stress/moving_ceiling.py --changes 1000
    python tests/stress/moving_ceiling.py --kinds alone --facts 12
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import httpx

import edgekv
from edgekv.models.catalog import find_model
from edgekv.testing.models.tiny import make_tiny
from edgekv.testing.server_process import serving, status_bytes
from edgekv.warmup import reserve

N_SESSIONS = 4
WORDS = ("the", "old", "house", "by", "the", "river", "stood", "where", "two", "roads", "met")
KEPT = 0.25  # share of the cells that the lowest ceiling leaves
RESERVED = 8 << 20  # bytes that this program takes itself: threads, texts
SERVED = {"budget": 2048, "block": 64, "threads": 1}
CELLS = {**SERVED, "probe_tokens": 16}
LIMIT_S = 600
PAUSE_S = 0.1  # the longest between two moves


class Place(Protocol):
    """A place for sessions. peak, kv: planned bytes when it was opened"""

    peak: int
    kv: int

    def ask(self, number: int, text: str) -> str:
        """Have a session read a text and reply; returns why the reply ended."""

    def move(self, ceiling: int) -> None:
        """Move the ceiling, and wait until the memory is back."""

    def bytes(self, field: str) -> int:
        """Return what the process with the model holds ("VmRSS"), or held at most ("VmHWM")."""


class Sessions:
    """Sessions of a runtime."""

    def __init__(self, runtime: edgekv.Runtime) -> None:
        self._runtime = runtime
        self._sessions = [runtime.session(history=number % 2 == 0) for number in range(N_SESSIONS)]
        self.peak, self.kv = runtime.plan.peak_bytes, runtime.plan.parts.kv

    def ask(self, number: int, text: str) -> str:
        session = self._sessions[number]
        n_past = session.n_past
        for _ in session.ask(text, max_tokens=8, ignore_eos=True, allow_loops=True):
            pass
        assert session.n_past > n_past
        return session.stats.finish_reason

    def move(self, ceiling: int) -> None:
        self._runtime.memory = ceiling

    def bytes(self, field: str) -> int:
        return status_bytes(self._runtime.worker_pid or os.getpid(), field)


class Server:
    """Conversations of a server."""

    def __init__(self, url: str, pid: Callable[[], int]) -> None:
        self._http = httpx.Client(base_url=url, headers={"Authorization": "Bearer key"}, timeout=LIMIT_S)
        self._pid = pid
        props = self._http.get("/props").json()
        self.peak, self.kv = props["planned_peak_bytes"], props["parts"]["kv"]
        self._told: list[list[dict[str, str]]] = [[] for _ in range(N_SESSIONS)]

    def ask(self, number: int, text: str) -> str:
        told = self._told[number] = [*self._told[number][-4:], {"role": "user", "content": text}]
        body = {"messages": told, "max_tokens": 8, "min_tokens": 8, "temperature": 0}
        answer = self._http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        told.append({"role": "assistant", "content": choice["message"]["content"] or "-"})
        return str(choice["finish_reason"])

    def move(self, ceiling: int) -> None:
        answer = self._http.put("/memory", json={"memory": ceiling})
        assert answer.status_code == 200, answer.text

    def bytes(self, field: str) -> int:
        return status_bytes(self._pid(), field)


def storm(place: Place, n_changes: int, seed: int) -> dict[str, Any]:
    """Move the ceiling while sessions read and reply; returns how replies ended, and the most bytes above a ceiling."""
    over, ended, lost = threading.Event(), Counter[str](), list[str]()

    def converse(number: int) -> None:
        chance = random.Random(f"{seed}-{number}")
        while not over.is_set():
            try:
                ended[place.ask(number, " ".join(chance.choices(WORDS, k=chance.randrange(5, 400))))] += 1
            except Exception as error:
                lost.append(repr(error))
                return

    threads = [threading.Thread(target=converse, args=(number,), daemon=True) for number in range(N_SESSIONS)]
    for thread in threads:
        thread.start()
    chance, over_by, pause = random.Random(seed), -sys.maxsize, threading.Event()
    for _ in range(n_changes):
        pause.wait(chance.uniform(0, PAUSE_S))
        ceiling = chance.randint(place.peak - int((1 - KEPT) * place.kv), place.peak)
        place.move(ceiling)
        over_by = max(over_by, place.bytes("VmRSS") - ceiling)
    over.set()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f"a reply hangs after {LIMIT_S} s"
    return {
        "replies": dict(ended),
        "lost": lost,
        "most_over_a_ceiling": over_by,
        "peak_over_the_highest": place.bytes("VmHWM") - place.peak,
    }


@contextlib.contextmanager
def opened(kind: str, model: Path) -> Iterator[Place]:
    """Open a place of a kind: "alone", "isolated" or "served"."""
    if kind == "served":
        named = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in SERVED.items())
        with serving(["--model", str(model), "--memory", "2GiB", "--api-key", "key", *named]) as server:
            yield Server(server.url, lambda: server.worker_pid() or server.process.pid)
        return
    release = reserve(RESERVED)
    try:
        with edgekv.Runtime(model, memory="2GiB", isolated=kind == "isolated", **CELLS) as runtime:
            place = Sessions(runtime)
            runtime.memory = place.peak
            yield place
    finally:
        release()


def facts(n: int, n_changes: int, seed: int) -> int:
    """Return in how many of n texts sessions with archives find a number while the ceiling moves."""
    settings: dict[str, Any] = {"memory": "1GiB", "budget": 512, "block": 64, "archive": "1GiB"}
    found, chance = 0, random.Random(seed)
    with edgekv.Runtime(find_model(None), **settings) as runtime:
        opened, over = runtime.plan, threading.Event()

        def move() -> None:
            moves = random.Random(seed)
            for _ in range(n_changes):
                if over.is_set():
                    return
                kept = moves.uniform(0.5, 1)
                runtime.memory = opened.peak_bytes - int((1 - kept) * opened.parts.kv)

        mover = threading.Thread(target=move)
        mover.start()
        for i in range(n):
            number = chance.randrange(10**4, 10**5)
            words = chance.choices(WORDS, k=900)
            words.insert(chance.randrange(900), f".\nThe secret number is {number}.\n")
            with runtime.session() as session:
                session.read(" ".join(words))
                said = "".join(
                    session.ask("What is the secret number?", max_tokens=16, sampling=edgekv.Sampling(temperature=0))
                )
            found += str(number) in said.replace(",", "")
            print(f"  text {i}: {number}: {said!r}", file=sys.stderr)
        over.set()
        mover.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=["alone", "isolated", "served"])
    parser.add_argument("--facts", type=int, default=0, help="texts of the default model in place of that")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.facts:
        plain, moved = (facts(options.facts, n, options.seed) for n in (0, sys.maxsize))
        print(f"found {plain} of {options.facts} without moves, {moved} with them")
        sys.exit(moved < plain)
    if options.case:
        with tempfile.TemporaryDirectory() as folder:
            shape = {"n_layer": 8, "n_head": 4, "n_head_kv": 4, "head_dim": 64}
            model = make_tiny(Path(folder) / "tiny.gguf", n_ctx_train=1 << 20, **shape)
            with opened(options.case, model) as place:
                print(json.dumps(storm(place, options.changes, options.seed)))
        return
    failed = False
    for kind in options.kinds:
        command = [sys.executable, __file__, "--case", kind, "--changes", options.changes, "--seed", options.seed]
        found = json.loads(subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE).stdout)
        failed |= bool(found["lost"]) or found["most_over_a_ceiling"] > 0 or found["peak_over_the_highest"] > 0
        print(f"{kind}: {found}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
