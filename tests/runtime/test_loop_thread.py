"""The loop in a thread of this process: interrupts, callbacks, forks and the end of the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from children import LIMIT_S, default_interrupt
from small import words
from waiting import until

import edgekv
from edgekv.cells.decoder import Decoder

signals = pytest.mark.skipif(sys.platform == "win32", reason="sends signals")


@signals
def test_an_interrupt_ends_a_long_read_at_its_next_block(local_runtime, monkeypatch):
    decode, n_decoded = Decoder.decode, []

    def decode_and_interrupt(decoder, feeds):
        rows = decode(decoder, feeds)
        n_decoded.append(len(feeds[0].tokens))
        if len(n_decoded) == 2:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            until(lambda: not local_runtime._engine.channel._serving.inbox.empty(), "the client's message")
        return rows

    with local_runtime.session(history=True) as session:
        with monkeypatch.context() as patch, default_interrupt():
            patch.setattr(Decoder, "decode", decode_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                session.read(words(400))
        assert (session.stats.finish_reason, session.stats.tokens_seen) == ("closed", 64)
        assert len(n_decoded) == 2
        assert session.n_past == 64
        session.read("a b c")
        assert session.stats.finish_reason == "read"


def test_a_scorer_uses_no_session(open_runtime):
    errors, sessions = [], []

    def score(positions):
        for use in (sessions[0].budgets, lambda: sessions[0].read("a"), sessions[0].snapshot):
            with pytest.raises(edgekv.SessionError) as caught:
                use()
            errors.append(str(caught.value))
        return positions.astype("float32")

    edgekv.policies.register("curious", score)
    try:
        with open_runtime(policy="curious") as rt, rt.session() as session, rt.session() as other:
            sessions.append(other)
            session.read(words(100), focus=False)
            assert session.stats.evictions > 0
            assert set(errors) == {
                "the cells are at work in this very call, such as one of a scorer; use the session after it"
            }
    finally:
        edgekv.policies.unregister("curious")


FORK = """
import os, sys
import edgekv
runtime = edgekv.Runtime(sys.argv[1], memory="4GiB", budget=64, threads=1)
session = runtime.session()
if os.fork() == 0:
    try:
        session.read("a b c")
    except edgekv.SessionError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
session.read("a b c")
print(session.stats.finish_reason)
runtime.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_runtime_is_used_in_the_process_that_opened_it(tiny_model):
    command = [sys.executable, "-c", FORK, tiny_model(n_layer=2)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    expected = "this runtime was opened before the process forked; open another one after the fork\nread\n"
    assert (ended.stdout, ended.returncode) == (expected, 0), ended.stderr


AT_EXIT = """
import atexit, sys, threading
import edgekv
runtime = edgekv.Runtime(sys.argv[1], memory="4GiB", budget=64, threads=1, allow_beyond_trained=True)
session, begun = runtime.session(), threading.Event()

def generate():
    for _ in session.generate("a b c", max_tokens=1_000_000, allow_loops=True, ignore_eos=True):
        begun.set()

if sys.argv[2] == "closes":
    atexit.register(runtime.close)
threading.Thread(target=generate, daemon=True).start()
begun.wait()
print("end")
"""


@pytest.mark.parametrize("then", ["closes", "leaves it open"])
def test_a_program_that_ends_within_a_reply_says_nothing(tiny_model, then):
    command = [sys.executable, "-X", "dev", "-c", AT_EXIT, tiny_model(n_layer=2, n_ctx_train=2048), then]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (ended.returncode, ended.stdout) == (0, "end\n"), ended.stderr
    assert "Fatal" not in ended.stderr
