"""Going back drops the newest cells where no eviction kept them, so that next to nothing is read again."""

from __future__ import annotations

import pytest

import edgekv
from edgekv.testing.models.tiny import make_tiny

GREEDY = edgekv.Sampling(temperature=0)
TEXT = "The old house by the river stood where two roads met. " * 12


IDS = [5 + i * 7 % 400 for i in range(100)]


def chat(*said):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]


def reply(session, messages, n=6):
    text = "".join(session.continue_from(messages, max_tokens=n, sampling=GREEDY))
    return text, session.stats


@pytest.fixture(scope="module")
def roomy(default_model):
    with edgekv.Runtime(default_model, memory="1GiB", budget=512, block=64, threads=1) as rt:
        yield rt


def test_the_same_request_again_reads_one_token(roomy):
    with roomy.session(history=True) as session:
        first, stats = reply(session, chat(TEXT))
        n_tokens = stats.prompt_tokens
        for _ in range(2):
            again, stats = reply(session, chat(TEXT))
            assert again == first
            assert (stats.reused_tokens, stats.prompt_tokens) == (n_tokens - 1, 1)


def test_another_question_and_a_branch_read_what_differs(roomy):
    with roomy.session(history=True) as session, roomy.session(history=True) as fresh:
        reply(session, chat(TEXT + "Where is it?"))
        reply(session, chat(TEXT + "Where is it?", "By the river.", "And the roads?"))
        for messages in (chat(TEXT + "Who stood there?"), chat(TEXT + "Where is it?", "There.", "And the roads?")):
            told, stats = reply(session, messages)
            assert stats.prompt_tokens < 64
            assert stats.reused_tokens + stats.prompt_tokens == session.n_past - stats.generated_tokens + 1
            assert told == reply(fresh, messages)[0]


def test_a_session_that_went_back_has_the_turns_and_the_log_of_a_fresh_one(roomy):
    with roomy.session(history=True) as session, roomy.session(history=True) as fresh:
        messages = chat(TEXT + "Where is it?")
        reply(fresh, messages)
        reply(session, chat(TEXT + "Who stood there, and for how long?"))
        reply(session, messages)
        assert list(session.turns()) == list(fresh.turns())
        for it in (session, fresh):
            it.rewind(40)
        assert (session.n_past, list(session.turns())) == (40, list(fresh.turns()))
        assert session.stats.read_tokens == 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_after_an_eviction_nothing_is_dropped(tiny):
    options = {"memory": "1GiB", "budget": 64, "block": 32, "policy": "keydiff", "threads": 1, "archive": "off"}
    with edgekv.Runtime(tiny, **options) as rt, rt.session(history=True) as session:
        reply(session, IDS, 8)
        assert session.n_cells < session.n_past
        session.rewind(session.n_past - 3)
        assert session.stats.reused_tokens == 0


# scores that add up, the newest queries, the newest query
@pytest.mark.parametrize("policy", ["h2o", "snapkv", "tova"])
def test_every_policy_says_what_a_fresh_session_says(tiny, policy):
    options = {"memory": "1GiB", "budget": 128, "block": 32, "policy": policy, "threads": 1}
    with edgekv.Runtime(tiny, **options) as rt, rt.session(history=True) as session:
        for n in (100, 99, 60, 100):
            told = reply(session, [*IDS[:n], 3])[0]
            with rt.session(history=True) as fresh:
                assert told == reply(fresh, [*IDS[:n], 3])[0]


def test_more_than_can_be_dropped_is_refused(tiny):
    options = {"memory": "1GiB", "budget": 128, "block": 32, "policy": "keydiff", "threads": 1}
    with edgekv.Runtime(tiny, **options) as rt, rt.session(history=True) as session:
        reply(session, IDS, 4)
        cache = rt.block_loop.cache
        n = cache.n_droppable
        assert n == cache.n_past
        with pytest.raises(edgekv.EdgeKVError, match=f"{n + 1} tokens to drop, but the cells of the newest {n} alone"):
            cache.drop(n + 1)
        assert cache.n_past == n


@pytest.mark.parametrize("policy", ["h2o", "snapkv", "keydiff"])
def test_a_session_that_was_swapped_out_goes_back_as_one_that_was_not(tiny, policy):
    """A snapshot lacks the queries that lie in the room of a draft."""
    options = {"memory": "1GiB", "budget": 128, "block": 32, "policy": policy, "threads": 1}
    with edgekv.Runtime(tiny, **options) as rt:
        seen = []
        for is_swapped_out in (False, True):
            with rt.session(history=True) as session, rt.session() as other:
                session.prefill_prefix(IDS[:70])
                if is_swapped_out:
                    other.read("a text")
                session.rewind(69)
                seen.append((session.stats.reused_tokens, session.kept_positions(0, 0).tolist()))
        assert seen[0] == seen[1]
