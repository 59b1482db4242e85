"""A history that is checked, rendered and tokenised once, for several sessions."""

from __future__ import annotations

import os

import pytest
from history_steps import noted_steps
from small import words

import edgekv

DRAWN = edgekv.Sampling(temperature=1.5, seed=3)
USER = {"role": "user", "content": f"{words(40)} unique"}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": NOTHING}}]


def said(session, history, **options):
    return "".join(session.continue_from(history, max_tokens=5, sampling=DRAWN, **options))


@pytest.mark.usefixtures("talkative")
def test_a_stored_history_is_what_it_is_elsewhere(runtime, tmp_path):
    """Prefixes, replies and their figures: of messages with an earlier reply, with a file, of a text and of ids."""
    path = tmp_path / "text.txt"
    path.write_text(words(200))
    with runtime.session(history=True) as one, runtime.session(history=True) as other:
        again = [USER, {"role": "assistant", "content": said(one, [USER])}, {"role": "user", "content": "And?"}]
        assert said(other, [USER]) == again[1]["content"]
        for history in (again, [*again, {"role": "user", "content": path}], words(30), runtime.tokenize(words(30))):
            with runtime.stored(history, folder=tmp_path) as stored:
                assert one.common_prefix_length(stored) == other.common_prefix_length(history)
                assert said(one, stored, focus=True) == said(other, history, focus=True)
            figures = [(it.stats.reused_tokens, it.stats.prompt_tokens, it.stats.probes) for it in (one, other)]
            assert figures[0] == figures[1]
            assert one.kept_positions(1, 1).tolist() == other.kept_positions(1, 1).tolist()
            assert [turn.role for turn in one.turns()] == [turn.role for turn in other.turns()]
        assert os.listdir(tmp_path) == ["text.txt"]


def test_it_is_counted_and_shown_and_is_of_its_runtime_and_block(runtime, open_runtime):
    other = [{"role": "user", "content": "other"}]
    with open_runtime() as elsewhere, elsewhere.stored(other) as foreign, runtime.session(history=True) as session:
        with runtime.stored([USER]) as stored:
            with runtime.stored(stored) as again:
                assert runtime.count_tokens(again) == runtime.count_tokens([USER])
            assert USER["content"] in runtime.prompt_text(stored)
            with pytest.raises(edgekv.SessionError, match="the stored history is of another runtime, or its block"):
                said(session, foreign)
        for use in (runtime.count_tokens, session.common_prefix_length, lambda history: said(session, history)):
            with pytest.raises(edgekv.SessionError, match="its block has ended; store it in this one"):
                use(stored)
        assert session.n_past == 0


def test_its_tools_are_stored_with_it(open_runtime):
    with open_runtime(grammars=True, budget=512) as runtime, runtime.session(history=True) as session:
        wanted = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        with runtime.stored([USER], **wanted) as stored:
            "".join(session.continue_from(stored, max_tokens=99))
        assert [call.name for call in session.stats.tool_calls] == ["look"]
        assert session.stats.prompt_tokens == runtime.count_tokens([USER], tools=TOOLS)


@pytest.mark.usefixtures("talkative")
def test_everything_is_done_once_for_all_sessions(open_runtime, monkeypatch):
    with open_runtime(budget=512) as runtime:
        sessions = [runtime.session(history=True) for _ in range(3)]
        for i, session in enumerate(sessions):
            said(session, [{"role": "user", "content": f"{i}"}])
        done = noted_steps(monkeypatch, "unique")
        with runtime.stored([USER]) as stored:
            assert len({session.common_prefix_length(stored) for session in sessions}) == 1
            said(sessions[0], stored)
    assert done == ["checked", "rendered", "tokenised"]


def test_a_history_that_cannot_be_read_is_refused_before(runtime, tmp_path):
    (tmp_path / "binary").write_bytes(b"\0")
    for history, message in (
        ([], "the history is empty"),
        ([{"role": "user", "content": tmp_path / "binary"}], "is not text"),
        ([1 << 30], "the vocabulary has no token"),
    ):
        with pytest.raises(edgekv.InputError, match=message), runtime.stored(history):
            pass
    with pytest.raises(edgekv.SessionFileError, match="takes no file"), runtime.stored([USER], folder=tmp_path / "no"):
        pass
