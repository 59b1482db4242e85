"""Sessions that share steps: each says and holds what it would alone, whoever else is there."""

from __future__ import annotations

import asyncio
import itertools
import threading

import numpy as np
import pytest
from at_once import LIMIT_S, alone, joined_steps, together
from diagonals import by_night, diagonal
from small import SETTINGS, words
from waiting import until

import edgekv
from edgekv.binding.cache import Cache
from edgekv.cells.speculation import NgramProposer, SpeculationGate
from edgekv.generation.sampler import GREEDY

POLICIES = ["keydiff", "h2o", "ahakv", "snapkv(window=16)", "keydiff+critical", "snapkv+ada"]
PAIRS = diagonal(POLICIES, ["f16", "q8_0", "q4_0"])
BY_DAY = ("h2o", "ahakv", "snapkv+ada")  # what adds up, queries and budgets are of each session


@pytest.fixture(scope="module")
def open_parallel(tiny_model):
    """A function that opens a runtime whose products of any number of tokens are what they are alone, to the bit."""

    def open_parallel(parallel=3, n_layer=2, quantization="Q4_0", **options):
        path = tiny_model(n_layer=n_layer, n_ctx_train=512, head_dim=64, quantization=quantization)
        return edgekv.Runtime(path, **(SETTINGS | {"parallel": parallel, "repack": False} | options))

    return open_parallel


@pytest.fixture
def joined(monkeypatch):
    """The sizes of the feeds of every step, which waits for every reply that pauses."""
    return joined_steps(monkeypatch)


def conversation(session, i):
    """Return all that a session says and holds, after every reply: a greedy one, one with a seed, one after a text."""
    drawn = edgekv.Sampling(temperature=1.0, seed=i)
    said = ["".join(session.chat("Hi", max_tokens=20, sampling=GREEDY))]
    session.read(words(90 + 40 * i, f"book{i}-"), focus=i % 2 == 0 and "Which words?")
    for question, sampling in (("What?", GREEDY), (words(30, f"more{i}-"), drawn)):
        said.append("".join(session.chat(question, max_tokens=40, sampling=sampling, focus=i % 2 == 1)))
        kept = [session.kept_positions(layer, head).tolist() for layer in range(2) for head in range(2)]
        said.append((session.n_past, session.n_cells, session.budgets(), kept, session.stats.evictions))
    return said


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "kv_type"), by_night(PAIRS, [case for case in PAIRS if case[0] in BY_DAY]))
def test_sessions_at_once_say_and_hold_what_each_does_alone(open_parallel, joined, policy, kv_type):
    with open_parallel(policy=policy, kv_type=kv_type) as rt:
        found = together(rt, 3, conversation)
        assert [1, 1, 1] in joined
        assert found == [alone(rt, i, conversation) for i in range(3)]
    with open_parallel(parallel=1, policy=policy, kv_type=kv_type) as rt:
        assert found == [alone(rt, i, conversation) for i in range(3)]
    assert found[0] != found[1]


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(
    "quantization",
    ["Q4_0", pytest.param("Q8_0", marks=pytest.mark.nightly), pytest.param("F16", marks=pytest.mark.nightly)],
)
def test_eight_greedy_replies_are_the_same_at_once_and_alone_with_any_block(open_parallel, joined, quantization):
    """Prompts are shorter and longer than a block of 32, so their tokens are decoded with few others and with many."""

    def reply(session, i):
        said = "".join(session.chat(words(1 + 2 * i, f"about{i}-"), max_tokens=40, sampling=GREEDY))
        assert session.stats.evictions == 0
        return said

    found = []
    for block in (32, 64, 128, 512):
        with open_parallel(parallel=8, quantization=quantization, block=block, budget=300) as rt:
            found.append(together(rt, 8, reply))
            assert [1] * 8 in joined
            joined.clear()
            found.append([alone(rt, i, reply) for i in range(8)])
    assert all(said == found[0] for said in found)
    assert len(set(found[0])) > 4


@pytest.fixture
def of_values():
    """A scorer in Python; its name is of_values."""
    edgekv.policies.register("of_values", lambda values, positions: np.abs(values).max(axis=2) + 0.001 * positions)
    yield
    edgekv.policies.unregister("of_values")


@pytest.mark.usefixtures("talkative", "of_values")
@pytest.mark.parametrize(
    "options",
    [{"reposition": "always"}, {"policy": "of_values"}, {"policy": "keydiff", "evict_every": 2}],
    ids=str,
)
def test_what_changes_a_cache_changes_that_of_its_session(open_parallel, joined, options):
    with open_parallel(**options) as rt:
        found = together(rt, 3, conversation)
        assert [1, 1, 1] in joined
        assert found == [alone(rt, i, conversation) for i in range(3)]


@pytest.mark.usefixtures("talkative")
def test_each_reply_follows_its_own_grammar(open_parallel, joined):
    """One has none, and two have different ones."""
    grammars = [None, "root ::= [0-9]+", 'root ::= ("yes" | "no")+']

    def work(session, i):
        session.read(words(90, f"book{i}-"))
        return "".join(session.chat("What?", max_tokens=20, sampling=GREEDY, grammar=grammars[i]))

    with open_parallel(grammars=True) as rt:
        found = together(rt, 3, work)
        assert [1, 1, 1] in joined
        assert found == [alone(rt, i, work) for i in range(3)]
    assert found[1].isdigit()
    assert set(found[2]) <= set("yesno")


@pytest.mark.usefixtures("talkative")
def test_sessions_at_once_share_each_reading_of_streamed_weights(open_parallel, joined):
    """Two slots of memory hold two layers, so four are read again and again."""
    with open_parallel(n_layer=4, resident=0) as rt:
        begin = rt.model.streaming().read_bytes
        found = together(rt, 3, conversation)
        shared = rt.model.streaming().read_bytes - begin
        assert [1, 1, 1] in joined
        assert found == [alone(rt, i, conversation) for i in range(3)]
        assert 0 < shared < 0.75 * (rt.model.streaming().read_bytes - begin - shared)


@pytest.mark.usefixtures("talkative")
def test_more_sessions_than_slots_take_turns(open_parallel, monkeypatch):
    with open_parallel(parallel=2) as rt:
        found = together(rt, 4, conversation)
        assert found == [alone(rt, i, conversation) for i in range(4)]


@pytest.mark.usefixtures("talkative")
def test_many_replies_at_once_choose_nearly_the_best_tokens(open_parallel, joined):
    """Choose nearly the best tokens on every processor: on Arm five tokens at once and more round as a block does."""
    n = 8
    questions = [words(12, f"ask{i}-") for i in range(n)]

    def work(session, i):
        # more tokens than there are blocks of all questions, so that no reply ends before the last one begins
        return list(session.chat(questions[i], max_tokens=48, sampling=GREEDY, logprobs=1, allow_loops=True))

    with open_parallel(parallel=n, budget=96) as rt:
        found = together(rt, n, work)
        assert [1] * n in joined
        for i, pieces in enumerate(found):
            tokens = [token for piece in pieces for token in piece.tokens]
            with rt.session(history=True) as session:
                list(session.chat(questions[i], max_tokens=1, sampling=GREEDY))
                block_loop = session._conversation.state.block_loop
                for token in tokens[:-1]:  # the same tokens, fed one by one
                    logits = rt.context.logits_array(block_loop.logits_row).astype(np.float64)
                    assert logits.max() - logits[token.id] < 0.1 * logits.std()
                    block_loop.step(token.id)


@pytest.mark.usefixtures("talkative")
def test_a_text_that_is_read_lets_replies_have_a_token_between_two_blocks(open_parallel, joined):
    def work(session, i):
        if i == 0:
            session.read(words(300, "long-"))
        else:
            list(session.chat("Hi", max_tokens=60, sampling=GREEDY))

    with open_parallel(parallel=2) as rt:
        together(rt, 2, work)
    sizes = [sum(step) for step in joined]
    replying = sizes[sizes.index(1) : len(sizes) - sizes[::-1].index(1)]
    assert len([n for n in replying if n > 1]) > 3
    assert all(1 in pair for pair in itertools.pairwise(replying))


@pytest.mark.usefixtures("talkative")
def test_a_feed_that_fails_fails_alone(open_parallel, joined, monkeypatch):
    failing = set()
    feed = Cache.feed_together

    def feed_together(feeds):
        if any(cache in failing for cache, _, _ in feeds):
            raise edgekv.NativeError("no")
        return feed(feeds)

    monkeypatch.setattr(Cache, "feed_together", staticmethod(feed_together))

    def work(session, i):
        said = []
        for piece in session.chat("Hi", max_tokens=30, sampling=GREEDY):
            said.append(piece)
            if i == 1 and len(said) == 5:
                failing.add(session._conversation.state.block_loop.cache)
        return "".join(said)

    with open_parallel() as rt:
        found = together(rt, 3, work)
        failing.clear()
        assert isinstance(found[1], edgekv.NativeError)
        assert found[0::2] == [alone(rt, i, work) for i in (0, 2)]


@pytest.mark.usefixtures("talkative")
def test_a_session_is_looked_at_while_it_replies(open_parallel, joined):
    """From another thread, which waits until the reply pauses or ends."""
    begun, looked = threading.Event(), threading.Event()
    sessions = {}

    def work(session, i):
        if i == 2:
            assert begun.wait(LIMIT_S)
            n_kept = len(sessions[0].kept_positions(0, 0))
            looked.set()
            return n_kept
        sessions[i] = session
        said = []
        for piece in session.chat(f"Hi {i}", max_tokens=30, sampling=GREEDY):
            said.append(piece)
            if i == 0:
                begun.set()
        assert looked.wait(LIMIT_S)
        return "".join(said)

    with open_parallel() as rt:
        found = together(rt, 3, work, n_first=2)
        assert found[2] > 0
        assert found[:2] == [alone(rt, i, work) for i in range(2)]


@pytest.mark.usefixtures("talkative")
def test_a_cancelled_reply_leaves_the_others_alone(open_parallel, joined):
    def work(session, i):
        said = []
        for piece in session.chat(f"Hi {i}", max_tokens=30, sampling=GREEDY):
            said.append(piece)
            if i == 1 and len(said) == 5:
                session.cancel()
        return "".join(said), session.stats.finish_reason

    with open_parallel() as rt:
        found = together(rt, 3, work)
        assert [reason for _, reason in found] == ["length", "cancelled", "length"]
        assert found[0::2] == [alone(rt, i, work) for i in (0, 2)]


@pytest.mark.usefixtures("talkative")
def test_sessions_are_saved_loaded_and_copied_while_others_reply(open_parallel, tmp_path):
    def work(session, i):
        if i < 2:
            return conversation(session, i)
        said = []
        for n in range(4):
            said.append("".join(session.chat(f"Hi {n}", max_tokens=5, sampling=GREEDY)))
            before = session.snapshot()
            session.save(tmp_path / "a.session")
            list(session.chat("And?", max_tokens=5, sampling=GREEDY))
            session.restore(before)
        return said

    with open_parallel() as rt:
        found = together(rt, 3, work)
        assert found == [alone(rt, i, work) for i in range(3)]
        with rt.load_session(tmp_path / "a.session") as session:
            assert session.n_past > 0


@pytest.mark.usefixtures("talkative")
def test_replies_are_awaited_and_cancelled_with_their_task(open_parallel):
    async def reply(session, n, begun=None):
        said = []
        async for piece in session.chat_async("Hi", max_tokens=n, sampling=GREEDY, allow_loops=True):
            said.append(piece)
            if begun is not None:
                begun.set()
        return "".join(said)

    async def main(rt):
        sessions = [rt.session() for _ in range(3)]
        replies = await asyncio.gather(*(reply(session, 20) for session in sessions))
        pieces = sessions[0].ask_async("More?", max_tokens=10_000, allow_loops=True)
        async for _ in pieces:
            break
        await pieces.aclose()
        reason = sessions[0].stats.finish_reason
        begun = asyncio.Event()
        task = asyncio.create_task(reply(sessions[1], 10_000, begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with rt.session() as another:
            continued = [piece async for piece in another.generate_async("and", max_tokens=3, sampling=GREEDY)]
        return replies, reason, continued

    with open_parallel() as rt:
        replies, reason, continued = asyncio.run(main(rt))
        with rt.session() as session:
            assert replies == ["".join(session.chat("Hi", max_tokens=20, sampling=GREEDY, allow_loops=True))] * 3
    assert reason == "closed"
    assert continued


def test_a_task_may_begin_while_the_progress_of_another_is_still_to_be_looked_at(open_parallel):
    """Both are in one thread, and neither is in the midst of the other's call."""

    async def reply(session, text, **options):
        return "".join([piece async for piece in session.chat_async(text, max_tokens=3, sampling=GREEDY, **options)])

    async def main(rt):
        seen = []
        first = asyncio.create_task(reply(rt.session(), words(90), progress=seen.append))
        await asyncio.sleep(0)
        until(lambda: rt._engine.channel.loop._reporting, "the end of a block")  # the event loop stands still
        assert await reply(rt.session(), "Hi") == alone
        await first
        assert seen

    with open_parallel() as rt:
        with rt.session() as session:
            alone = "".join(session.chat("Hi", max_tokens=3, sampling=GREEDY))
        asyncio.run(main(rt))


LONG = {"max_tokens": 60, "sampling": GREEDY, "allow_loops": True}


def watch(runtime, watcher):
    """Give a watcher whatever is fed in any slot."""
    for loop in runtime._engine.channel.loaded.block_loops:
        loop.watch = watcher


@pytest.fixture
def foreseen(monkeypatch):
    """A list of the tokens that a reply feeds. Once it has some, drafts are those that come next. All are decoded."""
    fed = []

    def propose(proposer, token, most, log):
        seen = np.frombuffer(proposer.to_bytes(), np.int32).tolist()
        return fed[len(seen) + 1 : len(seen) + 1 + most] if [*seen, token] == fed[: len(seen) + 1] else []

    monkeypatch.setattr(SpeculationGate, "allows_draft", lambda gate, draft: True)
    monkeypatch.setattr(NgramProposer, "propose", propose)
    return fed


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("policy", ["keydiff", "h2o", "snapkv(window=16)"])
def test_a_draft_is_dropped_when_another_session_steps(open_parallel, foreseen, policy):
    """The step takes the place of its logits. Drafts are made again when the other reply has ended."""
    with open_parallel(policy=policy, prompt_lookup="off") as rt, rt.session() as a, rt.session() as b:
        watch(rt, foreseen.extend)
        expected = "".join(a.chat(words(40), **LONG))
        watch(rt, None)
        expected_of_b = "".join(b.chat("Hi", **LONG))
        assert a.stats.drafted_tokens == 0
    with open_parallel(policy=policy, prompt_lookup="on") as rt, rt.session() as a, rt.session() as b:
        pieces, said = a.chat(words(40), **LONG), []
        while len(said) < 10 or not any(loop._speculation.draft for loop in rt._engine.channel.loaded.block_loops):
            said.append(next(pieces))
        others = b.chat("Hi", **LONG)
        said_by_b = [next(others) for _ in range(5)]
        for mine, theirs in itertools.zip_longest(pieces, others, fillvalue=""):
            said.append(mine)
            said_by_b.append(theirs)
        assert "".join(said) == expected
        assert "".join(said_by_b) == expected_of_b
        assert 4 < a.stats.accepted_tokens < a.stats.drafted_tokens


@pytest.mark.usefixtures("talkative")
def test_the_only_session_at_work_drafts(open_parallel, foreseen):
    with open_parallel(prompt_lookup="off") as rt, rt.session() as session:
        watch(rt, foreseen.extend)
        expected = "".join(session.chat(words(40), **LONG))
    with open_parallel(prompt_lookup="auto") as rt, rt.session() as session:
        assert rt.plan.prompt_lookup == "on"
        assert "".join(session.chat(words(40), **LONG)) == expected
        assert session.stats.accepted_tokens == session.stats.drafted_tokens > 30


def test_the_session_that_was_used_least_recently_gives_up_its_cells(open_parallel):
    with open_parallel(parallel=2) as rt, rt.session() as first, rt.session() as second, rt.session() as third:
        for session in (first, second, first, third):  # two have cells, whoever comes next takes those of one
            session.read("a b c")
        assert [session._conversation.state.is_loaded for session in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize(
    ("further", "named"),
    [
        ({"isolated": True}, "isolated=True"),
        ({"gpu_layers": 1}, "gpu_layers=1"),
        ({"rpc": "127.0.0.1:1", "isolated": True}, "isolated=True"),
        ({"parallel": 0}, r"parallel=0 .*\[1, 64\]"),
        ({"parallel": 33}, "parallel=33 .* but block=32; lower parallel, or raise block"),
        ({"parallel": 9, "ubatch": 8}, "parallel=9 .* but ubatch=8; lower parallel, or raise ubatch"),
    ],
)
def test_what_only_one_session_can_have_is_refused(open_parallel, further, named):
    with pytest.raises(edgekv.ConfigError, match=named):
        open_parallel(**further)
