"""Snapshots: a session that goes back to one goes on as if it had never left, bit for bit, whatever came between."""

from __future__ import annotations

import dataclasses
import pickle
import sys

import numpy as np
import pytest
from diagonals import diagonal
from small import words

import edgekv
from edgekv.binding import structs
from edgekv.binding.cache import CacheSnapshot
from edgekv.memory.process import resident_bytes, return_freed_memory

POLICIES = [
    "keydiff",
    "snapkv+ada",
    "h2o",
    "snapkv(window=16)",
    "keydiff+critical",
    "ahakv",
]


def ask(session, question="What was it?", n=40, **options):
    return "".join(session.chat(question, max_tokens=n, **options))


class Steps:
    """The logits of every token that a runtime says, (n_vocab,) each."""

    def __init__(self, runtime, monkeypatch):
        self.logits, self._runtime, self._stepping = [], runtime, runtime.block_loop.stepping
        monkeypatch.setattr(runtime.block_loop, "stepping", self._record)

    def _record(self, token, **given):
        yield from self._stepping(token, **given)
        self.logits.append(self._runtime.context.logits_array().copy())

    def take(self):
        taken, self.logits = self.logits, []
        return np.array(taken)


def held(runtime):
    """True and RoPE positions, keys and values of every head."""
    cache, found = runtime.block_loop.cache, []
    for at in np.ndindex(2, 2):
        rows = [cache.rows(*at, values=values)[0].tobytes() for values in (False, True)]
        found.append((cache.positions(*at).tolist(), cache.positions(*at, rope=True).tolist(), *rows))
    return found


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "kv_type"), diagonal(POLICIES, ["f16", "q8_0", "q4_0"], whole=["keydiff"]))
def test_a_restored_session_goes_on_as_one_that_never_left(open_runtime, monkeypatch, policy, kv_type):
    with open_runtime(policy=policy, kv_type=kv_type) as rt, rt.session() as session:
        steps = Steps(rt, monkeypatch)
        session.read(words(150))
        taken = session.snapshot()
        seen = session.n_past, held(rt), session.budgets()
        expected = ask(session), ask(session, "And then?", focus=True), session.n_past, held(rt), session.budgets()
        logits = steps.take()
        assert len(logits) > 70
        for question in ("Who?", words(100, "other")):
            session.restore(taken)
            assert (session.n_past, held(rt), session.budgets()) == seen
            steps.take()
            assert ask(session, question) != expected[0]
            assert not np.array_equal(steps.take()[:30], logits[:30])  # the check can fail
            session.restore(taken)
            found = ask(session), ask(session, "And then?", focus=True), session.n_past, held(rt), session.budgets()
            assert found == expected
            np.testing.assert_array_equal(steps.take(), logits)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "kv_type"), diagonal(["keydiff", "snapkv+ada", "h2o"], ["f16", "q8_0"]))
def test_a_text_beyond_the_trained_context(open_runtime, monkeypatch, policy, kv_type):
    with open_runtime(n_ctx_train=512, policy=policy, kv_type=kv_type) as rt, rt.session() as session:
        steps = Steps(rt, monkeypatch)
        session.read(words(300))
        assert session.n_past > 1024 > 512 >= rt.block_loop.cache.rope_past
        taken = session.snapshot()
        expected = ask(session, n=150), held(rt)
        logits = steps.take()
        session.restore(taken)
        ask(session, "Who else?", n=100)
        steps.take()
        session.restore(taken)
        assert rt.block_loop.cache.rope_past <= 512
        assert (ask(session, n=150), held(rt)) == expected
        np.testing.assert_array_equal(steps.take(), logits)

    # a short text that is gone back to is as little repositioned as before
    with open_runtime(n_ctx_train=512, policy=policy, kv_type=kv_type) as rt, rt.session() as session:
        session.read("a b c")
        taken = session.snapshot()
        session.read(words(300))
        session.restore(taken)
        ask(session, words(20))
        assert session.stats.repositions == 0 < session.stats.evictions


def test_everything_that_a_session_is_comes_back(runtime):
    """In every state of a conversation, with tokens that were said and not fed, any number of times."""
    with runtime.session(system="Be brief.") as session:

        def state():
            return session.n_past, session.n_cells, session.budgets(), session.kept_positions(1, 1).tolist()

        taken = [(session.snapshot(), state())]
        for go_on in (session.read, ask, session.read):
            go_on(session, words(60)) if go_on is ask else go_on(words(60))
            taken.append((session.snapshot(), state()))
        replies = []
        for _ in range(2):
            for snapshot, before in reversed(taken):
                session.restore(snapshot)
                assert state() == before
                replies.append(ask(session, "Why?"))
        assert replies[:4] == replies[4:]
        session.restore(pickle.loads(pickle.dumps(taken[0][0])))
        assert (state(), ask(session, "Why?")) == (taken[0][1], replies[3])
    with runtime.session(system="Be brief.") as other:
        other.restore(taken[1][0])
        assert ask(other, "Why?") == replies[2]


def test_a_snapshot_is_as_large_as_what_was_read(session, runtime):
    empty = session.snapshot().nbytes
    session.read("a")
    little, n = session.snapshot().nbytes, session.n_past
    session.read(words(200))
    much = session.snapshot().nbytes
    cell = runtime.plan.cell_bytes
    assert empty < 2000
    assert n * cell < little - empty < 2 * n * cell
    assert 64 * cell < much - empty < 2 * 64 * cell


def test_reading_begins_a_turn_that_the_next_goes_on_with(open_runtime, tmp_path, monkeypatch):
    book = tmp_path / "book.txt"
    book.write_text(words(100))
    fed, seen = [], []
    with open_runtime() as rt, rt.session() as session:
        feed = rt.block_loop.cache.feed

        def remember(tokens, **how):
            fed.extend(tokens)
            feed(tokens, **how)

        monkeypatch.setattr(rt.block_loop.cache, "feed", remember)
        session.read("and a word", files=[book], progress=seen.append)
        stats = session.stats
        assert (stats.finish_reason, stats.generated_tokens) == ("read", 0)
        assert stats.read_tokens == stats.prompt_tokens == session.n_past == seen[-1].tokens_done
        assert stats.evictions > 0
        assert session.n_cells == rt.plan.budget_cells
        session.read("and more")
        ask(session, "What?", n=1)
        turns, model = session._conversation._prompts.turns, rt.model
        form = turns._format
        parts = [form.before_first], f"{words(100)}\n\nand a word", "\n\nand more", "\n\nWhat?", [form.after_user]
        whole = [t for p in parts for t in model.tokenize("".join(p), special=isinstance(p, list))]
        assert fed == (whole if form.holds_bos else [*model.tokenize("", begin=True), *whole])


def test_reading_that_is_cancelled_is_gone_on_with(session):
    def cancel(progress):
        if progress.tokens_done == 64:
            session.cancel()

    session.read(words(200), progress=cancel)
    assert (session.stats.finish_reason, session.stats.read_tokens) == ("cancelled", session.n_past)
    assert session.n_past == 64
    session.read("more")
    assert ask(session, n=5) or session.stats.finish_reason == "end"


def test_what_reading_refuses(session, tmp_path):
    for nothing in ("", " \n"):
        with pytest.raises(edgekv.InputError, match="nothing to read; give a text or files"):
            session.read(nothing)
    with pytest.raises(edgekv.InputError, match="cannot be read"):
        session.read(files=[tmp_path / "absent.txt"])
    assert (session.n_past, session.stats.finish_reason) == (0, "failed")
    list(session.generate("a b c", max_tokens=2))
    with pytest.raises(edgekv.SessionError, match="continues a text"):
        session.read("Hello")


def test_snapshots_are_not_taken_in_the_midst_of_a_reply(session):
    session.read("a b c")
    taken = session.snapshot()
    pieces = session.generate("a") if session.n_past == 0 else session.chat("Hello", max_tokens=50)
    next(pieces)
    for use in (session.snapshot, lambda: session.restore(taken)):
        with pytest.raises(edgekv.SessionError, match="already answering"):
            use()
    pieces.close()
    session.restore(taken)
    session.close()
    for use in (session.snapshot, lambda: session.restore(taken)):
        with pytest.raises(edgekv.SessionError, match="closed"):
            use()


def test_snapshots_of_others_are_refused(runtime, open_runtime):
    with runtime.session() as session:
        session.read("a b c")
        taken, n_past = session.snapshot(), session.n_past
        with open_runtime() as other, other.session() as stranger:
            stranger.read("d")
            with pytest.raises(edgekv.SessionError, match="of another runtime"):
                stranger.restore(taken)
            assert 0 < stranger.n_past < n_past
            assert ask(stranger, n=2) or stranger.stats.finish_reason == "end"
    with runtime.session(system="Be brief.") as session, pytest.raises(edgekv.SessionError, match="system message"):
        session.restore(taken)


@pytest.mark.parametrize("policy", ["keydiff", "keydiff+critical", "h2o", "tova+ada"])
def test_a_snapshot_holds_nothing_of_earlier_sessions(open_runtime, policy):
    """Not in its rows, and not in what new cells carry before they are scored."""
    found = []
    for others in (("first", "other"), ("second",), ()):
        with open_runtime(policy=policy) as rt:
            for word in others:
                with rt.session() as session:
                    session.read(words(200, word))
            rt.block_loop.clear()  # a session does so before its first use
            for n in (40, 100):
                assert rt.block_loop.read(range(3, 3 + n), lambda n: True)
                found.append(rt.block_loop.cache.snapshot().data.tobytes())
    assert found[:2] == found[2:4] == found[4:]


def test_the_next_position_follows_the_text_unless_keys_are_moved(open_runtime):
    with open_runtime(reposition="never") as rt:
        cache = rt.block_loop.cache
        assert rt.block_loop.read(range(3, 200), lambda n: True)
        taken, before = cache.snapshot(), held(rt)
        cache.restore(taken)
        for change in (-1, -100, 1):
            data = taken.data.copy()
            structs.Snapshot.from_buffer(data.data).rope_past += change
            with pytest.raises(edgekv.ConfigError, match="its next position is impossible"):
                cache.restore(CacheSnapshot(data))
            assert (held(rt), cache.rope_past) == (before, cache.n_past)


def test_caches_take_what_fits_them(open_runtime):
    """Another runtime's cells where they are of one kind and there is room for them."""
    with open_runtime() as one:
        assert one.block_loop.read(range(3, 200), lambda n: True)
        taken, expected = one.block_loop.cache.snapshot(), held(one)
    for options in ({}, {"budget": 200, "block": 16}, {"policy": "keydiff+ada"}):
        with open_runtime(**options) as other:
            other.block_loop.cache.restore(taken)
            assert held(other) == expected
    assert not taken.data.flags.writeable
    another = "of another model, layout or cache type"
    for options, message in (
        ({"kv_type": "q8_0"}, another),
        ({"policy": "h2o"}, another),
        ({"budget": 32, "recent": 8, "block": 8}, "up to 64 cells of a head, which find no room"),
    ):
        with open_runtime(**options) as other:
            other.block_loop.cache.feed([5, 6])
            before = held(other)
            with pytest.raises(edgekv.ConfigError, match=message):
                other.block_loop.cache.restore(taken)
            assert held(other) == before


def test_a_snapshot_that_the_ceiling_does_not_hold_is_not_taken(open_runtime, monkeypatch):
    """The system's count of bytes is set so that one byte is missing."""
    with open_runtime(swap_bytes=0) as rt, rt.session() as session:
        session.read(words(100))
        taken, n_past = session.snapshot(), session.n_past
        room = rt.plan.ceiling_bytes - taken.nbytes
        monkeypatch.setattr("edgekv.memory.process.resident_bytes", lambda: room + 1)
        with pytest.raises(
            edgekv.CeilingError,
            match=r"does not hold the snapshot: .* raise .* 4097MiB, lower .* isolated.* or keep .* file \(Session",
        ) as no:
            session.snapshot()
        assert no.value.required_bytes == no.value.ceiling_bytes + 1 == rt.plan.ceiling_bytes + 1
        session.restore(taken)  # takes none
        assert session.n_past == n_past
        monkeypatch.setattr("edgekv.memory.process.resident_bytes", lambda: room)
        assert session.snapshot().nbytes == taken.nbytes


@pytest.mark.parametrize(("isolated", "n_copies"), [(False, 1), (True, 2)])
def test_a_runtime_tells_before_anything_is_read_if_it_holds_a_snapshot(open_runtime, isolated, n_copies):
    with open_runtime(swap_bytes=0, isolated=isolated) as rt, rt.session() as session:
        session.read(words(1000))
        assert session.stats.evictions
        assert session.snapshot().nbytes <= rt.plan.session_bytes
        plan = rt.plan
        enough = plan.peak_bytes + n_copies * plan.session_bytes
        for ceiling, holds in ((enough, True), (enough - 1, False)):
            rt._engine.plan = dataclasses.replace(plan, ceiling_bytes=ceiling)
            assert rt.holds_snapshot == holds


def test_a_worker_without_room_is_sent_none(open_runtime, monkeypatch):
    with open_runtime(isolated=True) as rt, rt.session() as session:
        session.read("a b c")
        taken, n_past = session.snapshot(), session.n_past
        session.read("d")
        monkeypatch.setattr(edgekv.Snapshot, "nbytes", rt.plan.ceiling_bytes)
        with pytest.raises(edgekv.CeilingError, match=r"memory=4096\.0 MiB does not hold the snapshot"):
            session.restore(taken)
        monkeypatch.undo()
        assert session.n_past > n_past
        session.restore(taken)
        assert session.n_past == n_past


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_grows_with_snapshots(open_runtime):
    with open_runtime(budget=1024, block=128) as rt, rt.session() as session:
        session.read(words(500))
        taken = session.snapshot()

        def held_after(n):
            for _ in range(n):
                session.restore(taken)
                session.snapshot()
            return_freed_memory()  # the last copy left some, and tests before
            return resident_bytes()

        before = held_after(5)
        assert held_after(50) - before < taken.nbytes
        assert taken.nbytes > 500_000


def test_read_once_ask_many(default_model, tmp_path):
    """The default model answers the second question as if it had been the first."""
    notes = tmp_path / "notes.txt"
    notes.write_text("The ferry to Holm leaves at noon. The lighthouse is painted green. " * 4)
    options = {"memory": "2GiB", "budget": 96, "block": 16, "recent": 8, "threads": 1, "focus": False}
    with edgekv.Runtime(default_model, **options) as rt:
        with rt.session() as session:
            session.read(files=[notes])
            taken = session.snapshot()
            first = ask(session, "When does the ferry leave?", n=8)
            session.restore(taken)
            second = ask(session, "What colour is the lighthouse?", n=8)
        with rt.session() as session:
            session.read(files=[notes])
            assert ask(session, "What colour is the lighthouse?", n=8) == second != first
