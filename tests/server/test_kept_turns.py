"""Streams tell how far the reading is and what is kept of the conversation, beside the reply."""

from __future__ import annotations

import re

import pytest
from asgi import said

import edgekv
from edgekv.api import coverage_file

PATH = "/v1/chat/completions"
BOOK = " ".join(f"word{i % 97}" for i in range(150))
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{BOOK} naïve 漢字"}]


def body(**further):
    return {"messages": MESSAGES, "max_tokens": 9, "temperature": 0, "stream": True, **further}


def told(answer):
    """The turns, [role, runs], of which each may come in several chunks."""
    turns = {}
    for chunk in said(answer)[:-1]:
        if part := chunk.get("edgekv", {}).get("coverage"):
            turns.setdefault(part["turn"], [part["role"], []])[1].extend(part["runs"])
    return [turns[i] for i in range(len(turns))]


@pytest.fixture
def sessions(monkeypatch):
    """Record what sessions keep, turn by turn, as they are asked for it."""
    found = []
    kept = edgekv.Session.kept

    def noted(session, turn):
        found.append([turn.role, [list(run) for run in kept(session, turn)]])
        return kept(session, turn)

    monkeypatch.setattr(edgekv.Session, "kept", noted)
    return found


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("chars", [1, 100, 1 << 14])
def test_a_stream_tells_what_its_session_keeps(ask, sessions, monkeypatch, chars):
    """The size of the stream's parts does not matter."""
    monkeypatch.setattr(coverage_file, "PART_CHARS", chars)
    turns = told(ask(PATH, body(edgekv={"coverage": True})))
    assert turns == sessions
    assert [role for role, _ in turns] == ["system", "user", "assistant"]
    for (_, runs), message in zip(turns, MESSAGES, strict=False):
        assert "".join(text for text, _ in runs) == message["content"]
    assert {shade for _, shade in turns[1][1]} >= {4, 5}  # held by all heads, and archived


def test_it_is_told_to_those_who_ask(ask, sessions):
    assert told(ask(PATH, body())) == sessions == []
    refused = ask(PATH, body(stream=False, edgekv={"coverage": True}))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "edgekv.coverage")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), edgekv.SessionFileError("no folder")], ids=repr)
@pytest.mark.parametrize("name", ["temp_file", "write_all"])
def test_a_full_disk_costs_the_shades_alone(ask, monkeypatch, name, error):
    def failing(*_):
        raise error

    monkeypatch.setattr(coverage_file, name, failing)
    answer = ask(PATH, body(edgekv={"coverage": True}))
    assert said(answer)[-1] == "[DONE]"
    assert told(answer) == []


def test_comments_tell_how_far_the_reading_is(ask):
    text = ask(PATH, body(messages=[{"role": "user", "content": f"another {BOOK}"}])).text
    steps = [tuple(map(int, step)) for step in re.findall(r"^: reading (\d+) of (\d+)$", text, re.MULTILINE)]
    (total,) = {total for _, total in steps}
    assert [seen for seen, _ in steps] == sorted({seen for seen, _ in steps})
    assert steps[-1] == (total, total)
    assert total > 150


@pytest.mark.parametrize(("wanted", "given"), [("Which word?", "Which word?"), (False, False), (None, True)])
def test_the_question_may_be_named(ask, monkeypatch, wanted, given):
    seen = []
    continue_from = edgekv.Session.continue_from

    def noted(session, history, *, focus, **further):
        seen.append(focus)
        return continue_from(session, history, focus=focus, **further)

    monkeypatch.setattr(edgekv.Session, "continue_from", noted)
    assert ask(PATH, body(edgekv={} if wanted is None else {"focus": wanted})).status_code == 200
    assert seen == [given]


@pytest.mark.usefixtures("talkative")
def test_streams_of_texts_tell_it_and_other_apis_refuse_it(ask, sessions):
    wanted = {"max_tokens": 9, "temperature": 0, "stream": True, "edgekv": {"coverage": True}}
    turns = told(ask("/v1/completions", {"prompt": BOOK, **wanted}))
    assert turns == sessions
    assert "".join(text for text, _ in turns[0][1]).startswith(BOOK)
    for path, asked in (("/v1/responses", {"input": "Hello"}), ("/v1/messages", {"messages": MESSAGES[1:]})):
        refused = ask(path, asked | wanted)
        assert (refused.status_code, "edgekv.coverage" in refused.text) == (400, True)
