"""Beginnings that histories share: they are read once, and every session goes on from them as if it had read them."""

from __future__ import annotations

import os
import threading

import pytest
from diagonals import HERE_BY_DAY, diagonal
from small import words

import edgekv
from edgekv.conversations import beginnings
from edgekv.generation.sampler import GREEDY
from edgekv.store import snapshot_file

POLICIES = ["keydiff", "snapkv+ada", "h2o", "snapkv(window=16)", "keydiff+critical"]
SYSTEM = words(40, "rule")
BOOK = words(300)
BLOCK = 32


def history(question, text=BOOK, system=None):
    opening = [] if system is None else [{"role": "system", "content": system}]
    return [*opening, {"role": "user", "content": f"{text}\n\n{question}"}]


def answered(session, messages, **options):
    """Return the reply, and the tokens that were reused and read for it."""
    options = {"focus": True, "max_tokens": 8, "sampling": GREEDY, "allow_loops": True} | options
    reply = "".join(session.continue_from(messages, **options))
    return reply, session.stats.reused_tokens, session.stats.prompt_tokens


def asked(rt, messages, *others, **options):
    """Have a new session answer a history as a server does: `others` are open, and may begin alike."""
    with rt.session(history=True) as session:
        return answered(session, messages, **{"shared": shared_with(rt, messages, *others)} | options)


def shared_with(rt, messages, *others):
    with rt.stored(messages) as stored:
        return max(stored.n_opening, *(other.common_prefix_length(stored) for other in others), 0)


def kept(rt):
    return rt._engine.slots.beginnings


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "kv_type"), diagonal(POLICIES, ["f16", "q8_0", "q4_0"], whole=["keydiff"]))
def test_a_text_is_read_once_for_many_questions(open_runtime, policy, kv_type):
    """The second history reads it without its question, and keeps it. All later ones begin there."""
    with open_runtime(policy=policy, kv_type=kv_type) as rt, rt.session(history=True) as first:
        _, reused, _ = answered(first, history("Who came first?"), shared=0)
        n_probes = first.stats.probes
        assert (reused, kept(rt).lengths, n_probes > 0) == (0, [], True)
        second, reused, n_read = asked(rt, history("Where was it?"), first)
        assert reused == 0
        (n_kept,) = kept(rt).lengths
        assert n_kept % BLOCK == 0
        assert n_read - n_kept < 2 * BLOCK
        for question in ("What then?", "Who else?", "Where was it?"):
            reply, *counts = asked(rt, history(question), first)
            assert counts[0] == n_kept
            assert sum(counts) == rt.count_tokens(history(question))
        assert reply == second
        assert kept(rt).lengths == [n_kept]


@pytest.mark.usefixtures("talkative")
def test_a_text_is_read_in_the_same_blocks_without_a_question(open_runtime):
    """So a reply without focus is that of a session that reads everything at once."""
    with open_runtime() as rt, rt.session(history=True) as first, rt.session(history=True) as alone:
        expected = answered(alone, history("Where was it?"), focus=False)[0]
        answered(first, history("Who came first?"), focus=False)
        found = [asked(rt, history("Where was it?"), first, focus=False) for _ in range(2)]
        assert [reply for reply, *_ in found] == [expected, expected]
        assert found[0][1] == 0 < found[1][1]


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
@pytest.mark.parametrize("budget", [64, 512], ids=["evicts", "fits"])
def test_a_system_message_is_read_once(open_runtime, isolated, budget):
    say = {"role": "system", "content": SYSTEM}
    with open_runtime(isolated=isolated, budget=budget) as rt:
        first, *counts = asked(rt, [say, {"role": "user", "content": "Hello"}])
        assert counts[0] == 0
        for question in ("Good morning to you", "Hello"):
            messages = [say, {"role": "user", "content": question}]
            reply, reused, _ = asked(rt, messages)
            with rt.stored(messages) as stored:
                assert reused == stored.n_opening > 40
        assert reply == first


def test_a_pinned_system_message_is_read_once_and_stays_pinned(open_runtime):
    with open_runtime(budget=128) as rt:
        messages = [history(question, system="Be brief. " * 6) for question in ("One?", "Two?")]
        for i, message in enumerate(messages):
            with rt.session("Be brief. " * 6, history=True) as session:
                _, reused, _ = answered(session, message, shared=0)
                n_pinned = rt.block_loop.pinned[0][1]
                assert reused == (n_pinned if i else 0)
                assert set(range(n_pinned)) <= set(session.kept_positions(0, 0).tolist())
        assert asked(rt, messages[0])[1] == 0  # a session without a pinned message has other cells


@pytest.mark.usefixtures("talkative")
def test_tools_are_part_of_the_beginning(open_runtime):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    with open_runtime(budget=1500, grammars=True) as rt:
        say = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        assert asked(rt, say, tools=[tool], tool_choice="none")[1] == 0
        say[1] = {"role": "user", "content": "And you?"}
        _, reused, n_read = asked(rt, say, tools=[tool], tool_choice="none")
        assert reused > n_read
        assert asked(rt, say)[1] == 0


@pytest.mark.usefixtures("talkative")
def test_a_question_that_has_to_be_in_mind_reads_the_text_again(open_runtime):
    """Unless every token has its cells: then no question makes a difference."""
    with open_runtime(policy="keydiff") as rt, rt.session(history=True) as first:
        expected = answered(first, history("Where was it?"), shared=0)
        asked(rt, history("Who came first?"), first)
        assert asked(rt, history("Where was it?"), shared=0) == expected
        assert asked(rt, history("Where was it?"), first, focus=False)[1] > 0  # the beginning was read so
    with open_runtime(budget=1500) as rt, rt.session(history=True) as first:
        answered(first, history("Where was it?"), shared=0)
        asked(rt, history("Who came first?"), first)
        assert asked(rt, history("Where was it?"), shared=0)[1] > 300


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("budget", "is_shared"), [(64, False), (400, True)], ids=["evicted", "whole"])
def test_a_shorter_history_has_no_keys_that_were_turned_for_a_longer_one(open_runtime, budget, is_shared):
    """Keys of more than half of the trained context are turned, but for those of an opening that evicted none."""
    say = {"role": "system", "content": words(60, "rule")}
    long, short = ([say, {"role": "user", "content": words(n)}] for n in (300, 60))
    with open_runtime(budget=budget) as rt:
        alone = asked(rt, short, focus=False), rt.block_loop.cache.positions(0, 0).tolist()
        n_turns = rt.block_loop.work.repositions
    with open_runtime(budget=budget) as rt:
        assert rt.count_tokens(short) < 1024 < rt.count_tokens(long)
        asked(rt, long, focus=False)
        (opening,) = kept(rt).lengths
        assert rt.block_loop.work.repositions > n_turns == 0
        assert asked(rt, long, focus=False)[1] == opening
        reply, reused, _ = asked(rt, short, focus=False)
        assert (reused == opening) == is_shared
        assert (reply, rt.block_loop.cache.positions(0, 0).tolist()) == (alone[0][0], alone[1])
        assert rt.block_loop.work.repositions == 0


@pytest.mark.usefixtures("talkative")
def test_the_same_history_is_read_with_its_question_again(open_runtime):
    with open_runtime() as rt, rt.session(history=True) as first:
        expected = answered(first, history("Where was it?"), shared=0)
        assert asked(rt, history("Where was it?"), first) == expected
        assert kept(rt).lengths == []


@pytest.mark.usefixtures("talkative")
def test_a_conversation_that_goes_on_otherwise_is_no_shared_text(open_runtime):
    """A reply came back with other words: what the user says next is read with its question."""
    with open_runtime() as rt, rt.session(history=True) as first:
        messages = history("Where was it?")
        answered(first, messages, shared=0)
        messages += [{"role": "assistant", "content": "Nowhere."}, {"role": "user", "content": BOOK}]
        shared = first.common_prefix_length(messages)
        assert shared > 300
        answered(first, messages, shared=shared)
        assert kept(rt).lengths == []
        assert first.stats.probes > 0


@pytest.mark.usefixtures("talkative")
def test_a_session_that_read_something_else_begins_there_too(open_runtime):
    """Afterwards its log and its turns are those of the history, and it goes on with them."""
    with open_runtime() as rt, rt.session(history=True) as first, rt.session(history=True) as other:
        answered(first, history("Where was it?"), shared=0)
        expected, *_ = asked(rt, history("Who came first?"), first)
        list(other.chat(words(50, "other"), max_tokens=3))
        reply, reused, _ = answered(other, history("Who came first?"), shared=1)
        assert (reply, reused) == (expected, kept(rt).lengths[0])
        assert [turn.role for turn in other.turns()] == ["user", "assistant"]
        assert "".join(other.text(next(other.turns()))) == history("Who came first?")[0]["content"]
        assert list(other.chat("And then?", max_tokens=3))
        n_past = other.n_past
        other.rewind(100)
        assert (other.n_past, n_past > 400) == (100, True)


# ---- room ----


def test_nothing_is_kept_where_nothing_may_lie_on_the_disk(open_runtime):
    with open_runtime(swap_bytes=0) as rt, rt.session(history=True) as first:
        expected = answered(first, history("Where was it?", system=SYSTEM), shared=0)
        for _ in range(2):
            assert asked(rt, history("Where was it?", system=SYSTEM), shared=300) == expected
        assert kept(rt).lengths == []


def test_the_least_recently_used_make_room(open_runtime):
    with open_runtime() as rt:
        size = rt.plan.session_bytes
    with open_runtime(swap_bytes=2 * size, swap_memory=0) as rt:
        systems = [words(50, name) for name in ("red", "green", "blue", "grey")]
        say = [history("Hello", "", system) for system in systems]
        for messages in (say[0], say[1], say[2], say[0], say[3]):
            asked(rt, messages)
            assert 0 < kept(rt).nbytes <= 2 * size
        n_kept = len(kept(rt).lengths)
        assert 1 < n_kept < 4
        assert [asked(rt, messages)[1] > 0 for messages in (say[3], say[0])] == [True, True]


def test_no_more_of_them_are_open_files_than_may_be(open_runtime, monkeypatch):
    monkeypatch.setattr(beginnings, "MAX_BEGINNINGS", 2)
    with open_runtime() as rt:
        for name in ("red", "green", "blue"):
            asked(rt, history("Hello", "", words(50, name)))
        assert len(kept(rt).lengths) == 2


def test_swapped_out_sessions_take_their_room(open_runtime):
    with open_runtime() as rt:
        size = rt.plan.session_bytes
    with open_runtime(swap_bytes=2 * size, swap_memory=0) as rt, rt.session() as one, rt.session() as two:
        asked(rt, history("Hello", "", SYSTEM))
        assert kept(rt).nbytes > 0
        one.read(BOOK)
        two.read(BOOK)
        with rt.session() as three:
            three.read("a")
            assert kept(rt).nbytes + rt._engine.slots.swap.disk_bytes <= 2 * size
            assert one.n_past > 300


def test_a_full_disk_keeps_nothing_and_loses_nothing(open_runtime, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with open_runtime() as rt:
        monkeypatch.setattr(snapshot_file, "write_all", full)
        expected = asked(rt, history("Hello", "", SYSTEM))
        assert asked(rt, history("Hello", "", SYSTEM)) == expected
        assert kept(rt).lengths == []


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_file_is_read_again(open_runtime, damage):
    """Also by a session that has read something else, whose checkpoints are left to it."""
    with open_runtime() as rt, rt.session(history=True) as other:
        expected, _, n_tokens = asked(rt, history("Hello", "", SYSTEM))
        list(other.chat("What is it?", max_tokens=3))
        (beginning,) = kept(rt)._all
        file = beginning.stored.file
        if damage == "gone":
            beginning.stored.close()
        elif damage == "cut":
            file.truncate(os.fstat(file.fileno()).st_size - 1)
        else:
            os.pwrite(file.fileno(), b"!!!!", 3000)
        shared = shared_with(rt, history("Hello", "", SYSTEM))
        told = answered(other, history("Hello", "", SYSTEM), shared=shared)[0]
        assert told == expected or other.stats.reused_tokens > 0  # its own beginning, read in other blocks
        assert asked(rt, history("Hello", "", SYSTEM))[1] > 40
        assert len(kept(rt).lengths) == 1
        assert other.stats.reused_tokens + other.stats.prompt_tokens == n_tokens
        assert other.stats.reused_tokens < 32


# ---- others at the same time ----


@pytest.mark.usefixtures("talkative")
def test_a_history_that_is_cancelled_keeps_only_what_it_has_read(open_runtime):
    with open_runtime() as rt, rt.session(history=True) as first, rt.session(history=True) as session:
        answered(first, history("Where was it?", system=SYSTEM), shared=shared_with(rt, history("Hi", "", SYSTEM)))
        n_opening = kept(rt).lengths[0]
        messages = history("Who came first?", system=SYSTEM)

        def stop(progress):
            if progress.tokens_done > 200:
                session.cancel()

        shared = first.common_prefix_length(messages)
        reply, reused, _ = answered(session, messages, shared=shared, progress=stop)
        assert (reply, reused, session.stats.finish_reason) == ("", n_opening, "cancelled")
        assert kept(rt).lengths == [n_opening]
        expected = asked(rt, messages, first)
        assert len(kept(rt).lengths) == 2
        assert answered(session, messages, shared=shared)[0] == expected[0]


@pytest.mark.usefixtures("talkative")
def test_two_histories_at_once_share_one_reading(open_runtime):
    """The second one waits for its turn, and begins where the first one was."""
    with open_runtime() as rt, rt.session(history=True) as first:
        answered(first, history("Where was it?"), shared=0)
        questions = ["Who came first?", "And who else?"]
        shared = first.common_prefix_length(history(questions[0]))
        found = {}

        def ask(question):
            found[question] = asked(rt, history(question), shared=shared)

        threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(reused > 0 for _, reused, _ in found.values()) == [False, True]
        for question in questions:
            assert asked(rt, history(question), shared=shared)[0] == found[question][0]


@pytest.mark.parametrize("shared", [-1, True, "many"])
def test_a_number_that_is_none_is_refused(runtime, shared):
    with (
        runtime.session(history=True) as session,
        pytest.raises(edgekv.ConfigError, match=r"^shared=.* is not possible"),
    ):
        answered(session, history("What?"), shared=shared)
