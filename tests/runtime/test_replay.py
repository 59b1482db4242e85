"""Replays: every token is fed once more before it can be evicted, and nothing else is changed by that."""

from __future__ import annotations

import numpy as np
import pytest
from small import SETTINGS, words

import edgekv
from edgekv.binding.cache import Cache
from edgekv.cells.block_replay import INSTRUCTION
from edgekv.generation.sampler import GREEDY
from edgekv.options import REPLAY_TOKENS

POLICY = "replay+ada(scope=model)"
ROOM = SETTINGS["block"] + REPLAY_TOKENS


def said(session, text, n=40, **options):
    return "".join(session.chat(text, max_tokens=n, allow_loops=True, sampling=GREEDY, **options))


@pytest.fixture
def probes(monkeypatch):
    """The tokens of every probe, in their order."""
    found, probe = [], Cache.probe
    monkeypatch.setattr(Cache, "probe", lambda cache, it, ends: (found.append(list(it)), probe(cache, it, ends)))
    return found


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("options", [{}, {"evict_every": 8}, {"ubatch": 8}, {"focus": False}], ids=str)
def test_every_token_is_replayed_once(open_runtime, probes, options):
    fed = []
    with open_runtime(policy=POLICY, **options) as rt, rt.session() as session:
        rt.block_loop.watch = fed.extend
        session.read(words(100))
        said(session, "What was it?", 100)
        said(session, words(50), 70)
        instruction = rt.tokenize(INSTRUCTION)
        assert all(probe[: len(instruction)] == instruction for probe in probes)
        replayed = [token for probe in probes for token in probe[len(instruction) :]]
        assert [*replayed, *rt.block_loop.block_replay.unscored] == fed
        assert len(fed) == session.n_past
        assert max(map(len, probes)) <= SETTINGS["block"] + len(instruction) <= ROOM
        assert session.stats.probes == 0 < session.stats.probe_s
        assert len({n for layer in session.budgets() for n in layer}) > 1


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("recent", "expected"), [(None, {(False, 0), (True, 32)}), (8, {(False, 8), (True, 8)})])
def test_newest_tokens_are_protected_while_a_reply_is_said(open_runtime, monkeypatch, recent, expected):
    found, compact = set(), Cache.compact

    def look(cache, *given, generating, recent, **named):
        found.add((generating, recent))
        return compact(cache, *given, generating=generating, recent=recent, **named)

    monkeypatch.setattr(Cache, "compact", look)
    with open_runtime(policy=POLICY, recent=recent) as rt, rt.session() as session:
        session.read(words(100))
        said(session, "What was it?", 100)
    assert found == expected


def test_a_question_that_is_known_scores_instead(open_runtime, probes, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text(words(150))
    with open_runtime(policy=POLICY) as rt, rt.session() as session:
        said(session, "Which words?", 3, files=[text])
        assert len({tuple(probe) for probe in probes}) == 1
        assert session.stats.probes == len(probes) > 5
        assert rt.options.parsed_focus.spec == POLICY
    probes.clear()
    with open_runtime(policy=POLICY) as rt, rt.session() as session:
        session.read(files=[text], focus=True)  # the general question, which replays take the place of
        assert session.stats.probes == 0 < len(probes)


@pytest.mark.usefixtures("talkative")
def test_replies_are_those_of_another_policy_where_nothing_is_evicted(open_runtime, probes):
    replies = []
    for policy in ("keydiff", POLICY):
        with open_runtime(policy=policy, budget=512) as rt, rt.session() as session:
            session.read(words(60))
            replies.append(said(session, "What was it?"))
    assert replies[0] == replies[1]
    assert len(probes) > 4


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_worker_says_the_same(open_runtime, kv_type):
    found = []
    for isolated in (False, True):
        with open_runtime(policy=POLICY, kv_type=kv_type, isolated=isolated) as rt, rt.session() as session:
            session.read(words(100))
            found.append((said(session, "What was it?", 12), session.budgets()))
    assert found[0] == found[1]


@pytest.mark.parametrize("focus", [True, False])
def test_the_plan_has_cells_for_a_block_and_its_instruction(open_runtime, focus):
    with open_runtime(policy=POLICY, focus=focus) as rt:
        assert rt.plan.n_cells == SETTINGS["budget"] + SETTINGS["block"] + ROOM
    with open_runtime(policy=POLICY, focus=focus, probe_tokens=200) as rt:
        assert rt.plan.n_cells == SETTINGS["budget"] + SETTINGS["block"] + (200 if focus else ROOM)


@pytest.mark.usefixtures("talkative")
def test_a_smaller_runtime_refuses_a_saved_session(open_runtime, tmp_path):
    with open_runtime(policy=POLICY, budget=200) as rt, rt.session() as session:
        session.read(words(150))
        session.save(tmp_path / "a")
    message = (
        "budget=64 and block=32 have no room, and .* evicts none before it is replayed; give the budget and the block"
    )
    with open_runtime(policy=POLICY) as rt, pytest.raises(edgekv.SessionFileError, match=message):
        rt.load_session(tmp_path / "a")


@pytest.mark.usefixtures("talkative")
def test_a_smaller_block_refuses_what_is_longer_and_not_replayed_yet(open_runtime, tmp_path):
    with open_runtime(policy=POLICY) as rt, rt.session() as session:
        said(session, "What?", 20)
        assert 8 < len(rt.block_loop.block_replay.unscored) <= 32
        session.save(tmp_path / "a")
    message = r"of them not replayed yet, .* block=8 have no room"
    with (
        open_runtime(policy=POLICY, block=8, budget=128) as rt,
        pytest.raises(edgekv.SessionFileError, match=message),
    ):
        rt.load_session(tmp_path / "a")
    with open_runtime(policy=POLICY, block=64) as rt, rt.load_session(tmp_path / "a") as session:
        assert len(rt.block_loop.block_replay.unscored) > 8


def test_a_scoring_that_fails_replays_again(open_runtime, probes, monkeypatch):
    with open_runtime(policy=POLICY) as rt:
        cache, compact = rt.block_loop.cache, rt.block_loop.cache.compact
        rt.block_loop.step(5)

        def fail(*given, **named):
            raise edgekv.NativeError("no")

        monkeypatch.setattr(cache, "compact", fail)
        with pytest.raises(edgekv.NativeError):
            rt.block_loop.read([6, 7, 8], lambda n: True)
        held = rt.block_loop.block_replay.unscored
        assert held == (5, 6, 7)
        monkeypatch.setattr(cache, "compact", compact)
        assert rt.block_loop.read([9], lambda n: True)
        assert probes[-1][-3:] == [5, 6, 7]
        assert np.array_equal(cache.positions(0, 0), np.arange(4))
        assert rt.block_loop.block_replay.unscored == (9,)
        assert cache.n_past == 4
