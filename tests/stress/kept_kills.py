"""Kept sessions whose processes are killed at random moments: each resumes with every whole turn.

Predicted: of 200 kills with -9, of chats, readings and servers in the midst of their work, none loses a whole turn, and
the next reply of each is that of its log.

A chat chats, reads, goes back and changes what was said. It prints its tokens after each turn, and is killed. The next
process goes on with what is left. The reply of a session that was killed is compared with that of another process that
made the same turns from the same folder, was not killed, and went back to the same token. A server is killed while it
answers. The next one is asked again what was not answered, and has to read nothing but the next question of each
conversation. Its reply is compared with that of a runtime that loads the same folder alone, with the same options and
sampling.

    python tests/stress/kept_kills.py
    python tests/stress/kept_kills.py --seconds 300 --kind server --seed 7
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx

import edgekv
from edgekv.generation.sampler import GREEDY
from edgekv.store.kept_folder import is_kept
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny
from edgekv.testing.server_process import Serving, serving

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import served  # noqa: F401  (shows a conversation's state)

OPTIONS = {
    **{"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16},
    **{"policy": "keydiff", "archive": "64MiB", "allow_beyond_trained": True},
}
SERVED = {"memory": "4GiB", "budget": 64, "block": 32, "threads": 1, "policy": "keydiff", "archive": "64MiB"}
SAMPLED = {"temperature": 0, "min_p": 0}  # the fields of `edgekv.Sampling()`
LONGEST_S = {"chat": 0.8, "read": 0.5, "server": 0.6}  # from the first turn to the kill
MOST_TOKENS = 1500
MOST_READ = 60  # tokens around a question, and those of it that are read again
PATH = "/v1/chat/completions"


def ids_of(session: edgekv.Session) -> list[int]:
    """Return the tokens of a session, with the one that is generated and not fed yet."""
    state = session._conversation.state  # type: ignore[attr-defined]
    return [*state.history.tokens(0, session.n_past + len(state.pending), state.pending)]


def words(rng: random.Random, most: int) -> str:
    return " ".join(f"word{rng.randrange(97)}" for _ in range(rng.randrange(1, most)))


def turns(session: edgekv.Session, rng: random.Random, kind: str) -> Iterator[int]:
    """Make turns; yield before each how many of the tokens it keeps, and after it."""
    while True:
        n = len(ids_of(session))
        step = "read" if kind == "read" else rng.choice(["chat", "chat", "read", "rewind", "change"])
        keeps = rng.randrange(n // 2, n) if n > 40 and step in ("rewind", "change") else n
        if n > MOST_TOKENS:
            step, keeps = "rewind", n // 4
        text, before = words(rng, 400 if kind == "read" else 80), ids_of(session)
        yield keeps
        if step == "read":
            ahead = session.continue_from([*before, *(5 + it % 200 for it in range(len(text)))], max_tokens=1)
            list(ahead)
        elif step == "rewind":
            session.rewind(min(keeps, session.n_past))
        else:
            tail = [5 + ord(letter) % 200 for letter in text[:100]]
            list(session.continue_from([*before[:keeps], *tail], max_tokens=40, sampling=GREEDY, allow_loops=True))
        yield keeps


def opened(runtime: edgekv.Runtime, folder: Path) -> edgekv.Session:
    if is_kept(folder):
        return runtime.load_session(folder, keep=True)
    session = runtime.session(history=True)
    session.keep(folder)
    return session


def work(model: Path, folder: Path, seed: int, kind: str) -> None:
    """Make turns, and print their tokens, until somebody ends it."""
    with edgekv.Runtime(model, **OPTIONS) as runtime, opened(runtime, folder) as session:
        print(json.dumps({"ids": ids_of(session)}), flush=True)
        for i, keeps in enumerate(turns(session, random.Random(seed), kind)):
            print(json.dumps({"keeps": keeps} if i % 2 == 0 else {"ids": ids_of(session)}), flush=True)


def next_reply(session: edgekv.Session, ids: list[int]) -> str:
    return "".join(session.continue_from([*ids, 5, 6, 7], max_tokens=20, sampling=GREEDY, allow_loops=True))


def killed(model: Path, folder: Path, seed: int, kind: str, delay: float) -> list[dict[str, Any]]:
    """Kill such a process so long after its first turn began; returns what it printed."""
    command = [sys.executable, __file__, "--work", str(model), str(folder), str(seed), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        time.sleep(delay)
        process.kill()
        lines += process.stdout.read().splitlines()
    return [json.loads(line) for line in lines if line.strip().endswith("}")]


def kill_a_chat(runtime: edgekv.Runtime, model: Path, folder: Path, seed: int, kind: str) -> dict[str, int]:
    """Kill a process once; compare what is left with what it said, and with a process that was not killed."""
    rng, before = random.Random(seed), folder.with_suffix(".before")
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        shutil.copytree(folder, before)
    said = killed(model, folder, seed, kind, rng.uniform(0, LONGEST_S[kind]))
    ends = [it["ids"] for it in said if "ids" in it]
    within = "keeps" in said[-1]
    keeps = said[-1]["keeps"] if within else len(ends[-1])
    left = folder.with_suffix(".left")
    shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(folder, left)
    with runtime.load_session(left, keep=True) as session:
        ids, n_past = ids_of(session), session.n_past
        reply = next_reply(session, ids)
    whole = ids[:keeps] == ends[-1][:keeps]
    with opened(runtime, before) as session:  # the same turns from the same folder
        for i, _ in enumerate(turns(session, random.Random(seed), kind)):
            if i == 2 * len(ends) - 1:
                break
        same = ids_of(session)[: len(ids)] == ids
        if not same:  # it is as before the turn
            return {"whole": whole and ids == ends[-1], "compared": 0, "same": 0, "in a turn": within}
        session._conversation.state.history.checkpoints.drop_from(0)  # type: ignore[attr-defined]
        if n_past == session.n_past:
            next_reply(session, ids)
            session._conversation.state.history.checkpoints.drop_from(0)  # type: ignore[attr-defined]
        session.rewind(n_past)
        expected = next_reply(session, ids)
    return {"whole": whole, "compared": 1, "same": reply == expected, "in a turn": within}


def kill_a_server(model: Path, state: Path, seed: int) -> dict[str, int]:
    """Kill a server while it answers; in the next one each conversation goes on, and only a new question is read."""
    rng, rules = random.Random(seed), {"role": "system", "content": words(random.Random(seed), 200)}
    talks: list[list[dict[str, Any]]] = [[rules], [rules], []]
    with a_server(model, state) as server:
        timer = threading.Timer(rng.uniform(0, LONGEST_S["server"]), server.process.kill)
        with suppress(httpx.HTTPError), httpx.Client(base_url=server.url, timeout=60) as http:
            for i in itertools.count():
                questions = ["And then?"] * 3
                questions[i % 3] = words(rng, 60)  # the client asks it again if it gets no answer
                asked = {"role": "user", "content": questions[i % 3]}
                talks[i % 3] += [asked, answer(http, [*talks[i % 3], asked])[0]]
                if i == 0:
                    timer.start()
        timer.join()
    counts = {"whole": 1, "compared": 0, "same": 0, "in a turn": 1}
    left = shutil.copytree(state / "conversations", state.with_suffix(".left"))
    with (
        edgekv.Runtime(model, **SERVED) as runtime,
        a_server(model, state) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for talk, question in zip(talks, questions, strict=True):
            if not any(message["role"] == "assistant" for message in talk):
                continue
            asked = [*talk, {"role": "user", "content": question}]
            said, n_read = answer(http, asked)
            counts["whole"] &= n_read < MOST_READ + runtime.count_tokens(question)
            counts["compared"] += 1
            counts["same"] += said["content"] == reply_alone(runtime, left, asked)
    return counts


def a_server(model: Path, state: Path) -> AbstractContextManager[Serving]:
    options = [f"--{name}={value}" for name, value in SERVED.items()]
    return serving(["-m", str(model), *options, "--state-dir", str(state)])


def reply_alone(runtime: edgekv.Runtime, folder: Path, messages: list[dict[str, Any]]) -> str:
    """Return the reply of the conversation that has most of the messages, of those in a folder of a server."""
    with ExitStack() as opened_ones:
        paths = (path for path in folder.iterdir() if is_kept(path))
        sessions = [opened_ones.enter_context(runtime.load_session(path)) for path in paths]
        fitting = (it for it in sessions if it.system in (None, messages[0]["content"]))
        session = max(fitting, key=lambda it: it.common_prefix_length(messages))
        return "".join(session.continue_from(messages, max_tokens=16, sampling=edgekv.Sampling(), focus=True))


def answer(http: httpx.Client, messages: list[dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """Return the reply of a server, and how many tokens it read for it."""
    reply = http.post(PATH, json={"messages": messages, "max_tokens": 16, **SAMPLED}).json()
    usage = reply["usage"]
    return reply["choices"][0]["message"], usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kind", choices=["chat", "read", "server"], help="default: each in turn")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then, whatever is left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        model, path, seed, kind = options.work
        work(Path(model), Path(path), int(seed), kind)
        return
    kinds = [options.kind] if options.kind else list(LONGEST_S)
    rows = {kind: dict.fromkeys(("kills", "whole", "compared", "same", "in a turn"), 0) for kind in kinds}
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as name:
        model = make_tiny(Path(name, "tiny.gguf"), n_layer=2, n_ctx_train=8192, head_dim=64)
        with edgekv.Runtime(model, **OPTIONS) as runtime:
            for i in itertools.takewhile(lambda _: time.monotonic() < end, range(options.kills)):
                kind, seed = kinds[i % len(kinds)], 1000 * options.seed + i
                if kind == "server":
                    found = kill_a_server(model, Path(name, f"state-{i}"), seed)
                else:
                    found = kill_a_chat(runtime, model, Path(name, f"{kind}.session"), seed, kind)
                rows[kind]["kills"] += 1
                for key, value in found.items():
                    rows[kind][key] += value
    programs.print_table(["kind", *rows[kinds[0]]], [[kind, *row.values()] for kind, row in rows.items()])
    programs.write_json(options.json, [{"kind": kind, **row} for kind, row in rows.items()])
    sys.exit(any(row["whole"] < row["kills"] or row["same"] < row["compared"] for row in rows.values()))


if __name__ == "__main__":
    main()
