"""Two passes: a text is read again with the first answer in mind, and only the second answer stays."""

from __future__ import annotations

import itertools
import os
import re
import threading

import pytest
from small import words

import edgekv
from edgekv.prompt.turns import Turns

QUESTION = "Who was word7?"


@pytest.fixture(scope="module")
def open_runtime(open_runtime):
    return lambda **options: open_runtime(**{"probe_tokens": 48} | options)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(words(60))
    return path


@pytest.fixture
def forgetful(monkeypatch):
    """A second pass that does not have the first answer in mind."""
    probe = Turns.probe
    monkeypatch.setattr(Turns, "probe", lambda turns, question, n_tokens, answer="": probe(turns, question, n_tokens))


def asked(session, path, **further):
    return "".join(session.ask(QUESTION, files=[path], max_tokens=12, **further))


@pytest.mark.usefixtures("talkative")
def test_the_second_pass_has_question_and_first_answer_in_mind(local_runtime, path, monkeypatch):
    cache, model, probes = local_runtime.block_loop.cache, local_runtime.model, []
    probe = cache.probe
    monkeypatch.setattr(cache, "probe", lambda tokens, ends: (probes.append((list(tokens), ends)), probe(tokens, ends)))
    with local_runtime.session() as session:
        first = asked(session, path)
        n_once, n_past = len(probes), session.n_past
    probes.clear()
    with local_runtime.session() as session:
        second = asked(session, path, passes=2)
        assert session.stats.passes == 2
        assert session.stats.probes == len(probes) == 2 * n_once
        assert session.n_past == n_past  # tokens of one text, one question and one answer
        assert session.stats.read_tokens == session.stats.prompt_tokens
        assert 0 < session.stats.first_pass_s < session.stats.ttft_s
    (question, one), (both, two) = probes[0], probes[-1]
    assert both[: len(question)] == question
    assert (len(one), len(two)) == (1, 2)
    said = b"".join(map(model.piece, both[len(question) :])).decode(errors="ignore").partition("assistant")[2].strip()
    assert said
    assert first.strip().startswith(said)  # equal up to the room there is
    assert len(both) <= local_runtime.options.probe_tokens
    assert second


@pytest.mark.usefixtures("talkative")
def test_the_conversation_is_as_after_one_pass_with_that_focus(runtime, path):
    """Here and in a worker: the cells are those of the second pass alone."""
    with runtime.session(history=True) as session:
        asked(session, path, passes=2)
        turns = [turn.role for turn in session.turns()]
        text = "".join(session.text())
        assert turns.count("assistant") == 1
        assert text.count(QUESTION) == 1
        answer = "".join(session.text(next(turn for turn in session.turns() if turn.role == "assistant")))
        assert re.sub(r"<\|\w+\|>", "", text).rstrip().endswith(answer.strip())  # a turn has no control tokens
        list(session.chat("And then?", max_tokens=2))  # goes on
        n_past = session.n_past
        session.rewind(n_past - 3)
        assert session.n_past == n_past - 3


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_type": "q8_0", "reposition": "always"},
        {"focus_policy": "snapkv(window=64)+ada"},
        {"policy": "h2o", "prompt_lookup": "on"},
    ],
    ids=["default", "turned", "ragged", "carried"],
)
@pytest.mark.usefixtures("talkative", "forgetful")
def test_going_back_leaves_nothing_of_the_first_pass(open_runtime, path, options, begun):
    """If the second pass has nothing else in mind, it says and keeps what one pass does; draws are the same, too."""
    sampling = edgekv.Sampling(temperature=0.8, seed=3)

    def said(runtime, passes):
        with runtime.session(history=options == {}) as session:
            if begun:
                list(session.chat("Hello there", max_tokens=3, sampling=sampling))
            reply = asked(session, path, passes=passes, sampling=sampling)
            assert session.stats.passes == passes
            heads = [(layer, head) for layer in range(2) for head in range(2)]
            return reply, session.n_past, [session.kept_positions(*head).tolist() for head in heads]

    with open_runtime(**options) as runtime:
        assert said(runtime, 2) == said(runtime, 1)


def test_a_conversation_that_was_begun_keeps_what_came_before(runtime, path):
    with runtime.session() as session:
        list(session.chat("Hello there", max_tokens=3))
        before = session.n_past
        once = session.snapshot()
        asked(session, path)
        n_once = session.n_past
        session.restore(once)
        asked(session, path, passes=2)
        assert session.stats.passes == 2
        assert before < session.n_past
        assert abs(session.n_past - n_once) <= 12  # replies may differ in length
    with runtime.session("Be brief.") as session:
        asked(session, path, passes=2)
        assert set(range(3)) <= set(session.kept_positions(0, 0).tolist())  # the system message is pinned still


def test_a_begun_conversation_needs_room_for_its_snapshot(local_runtime, path, monkeypatch):
    with local_runtime.session() as session:
        list(session.chat("Hello there", max_tokens=3))
        n_past = session.n_past

        def full(self, n_bytes, what, remedy, reserved=0):
            raise edgekv.CeilingError(f"no room for {what}", required_bytes=2, ceiling_bytes=1)

        monkeypatch.setattr("edgekv.cells.memory_guard.MemoryGuard.check_room", full)
        with pytest.raises(edgekv.CeilingError, match="no room for the snapshot"):
            asked(session, path, passes=2)
        assert (session.n_past, session.stats.finish_reason) == (n_past, "failed")


def test_a_text_that_fits_is_read_once(session, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("one two")
    list(session.ask("Who?", files=[path], instruction="", max_tokens=2, passes=2))
    assert (session.stats.passes, session.stats.probes) == (1, 0)


def test_a_pipe_is_read_twice_from_its_copy(session, tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_text, args=(words(60),))
    writer.start()
    asked(session, fifo, passes=2)
    writer.join()
    assert session.stats.passes == 2


@pytest.mark.parametrize("when", ["first reading", "first answer", "second reading"])
@pytest.mark.usefixtures("talkative")
def test_cancelled_it_ends_and_the_session_goes_on(session, path, when, monkeypatch):
    done = []

    def look(progress):
        done.append(progress.tokens_done)
        passes = 1 + sum(later <= earlier for earlier, later in itertools.pairwise(done))
        is_whole = progress.tokens_done == progress.tokens_total
        if (when, passes, is_whole) in (
            ("first reading", 1, False),
            ("first answer", 1, True),
            ("second reading", 2, False),
        ):
            session.cancel()

    asked(session, path, passes=2, progress=look)
    assert session.stats.finish_reason == "cancelled"
    assert session.stats.passes == (2 if when == "second reading" else 1)
    assert session.n_past > 0
    asked(session, path)
    assert session.stats.finish_reason != "cancelled"


def test_what_is_not_iterated_to_its_end_leaves_a_session_that_goes_on(session, path):
    pieces = session.ask(QUESTION, files=[path], max_tokens=12, passes=2)
    next(pieces, None)
    pieces.close()
    asked(session, path)
    assert session.stats.passes == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"passes": 2}, "passes=2 reads the files again, and there are none"),
        (
            {"passes": 2, "files": True, "focus": False},
            "passes=2 reads with the first answer in mind, but focus is off",
        ),
        ({"passes": 3, "files": True}, "passes=3 is not possible; give 1 or 2"),
        ({"passes": 0, "files": True}, "passes=0 is not possible"),
    ],
)
def test_what_cannot_be_read_twice(session, path, arguments, message):
    arguments = arguments | {"files": [path] if "files" in arguments else []}
    with pytest.raises(edgekv.ConfigError, match=message):
        list(session.ask(QUESTION, **arguments))
    assert session.n_past == 0


def test_a_question_that_leaves_no_room_for_an_answer_is_refused(session, path):
    with pytest.raises(edgekv.ConfigError, match=r"fills the probe of 48 tokens; .* probe_tokens=96"):
        list(session.ask("Where is it? " * 20, files=[path], passes=2))
    assert (session.n_past, session.stats.finish_reason) == (0, "failed")
