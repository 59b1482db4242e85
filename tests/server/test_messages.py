"""POST /v1/messages and /v1/messages/count_tokens: what a body asks for, whole and in pieces."""

from __future__ import annotations

import json

import pytest
from asgi import said

from edgekv.api.api_errors import ApiError
from edgekv.api.body import parsed
from edgekv.api.messages import MessagesBody, parse
from edgekv.api.server_settings import Settings

PATH = "/v1/messages"
HELLO = {"role": "user", "content": "Hello there"}
GREEDY = {"model": "any", "max_tokens": 12, "temperature": 0}


def read(**body):
    """A body that was checked."""
    return parsed(MessagesBody, json.dumps({"messages": [HELLO], "max_tokens": 5} | body).encode())


def turns(messages, **body):
    """Roles and contents of what a body asks to be read."""
    request = parse(read(messages=messages, **body), Settings())
    return [(message["role"], message["content"]) for message in request.messages]


def text(*texts):
    return [{"type": "text", "text": text} for text in texts]


def test_blocks_are_paragraphs_and_messages_in_a_row_are_one():
    messages = [
        {"role": "user", "content": text("One.", "Two.")},
        {"role": "user", "content": "Three."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": ""}, *text("Fo", "ur")]},
        {"role": "user", "content": [{"type": "text", "text": "Five?", "cache_control": {"type": "ephemeral"}}]},
    ]
    assert turns(messages, system=text("Be brief.", "Be kind.")) == [
        ("system", "Be brief.\n\nBe kind."),
        ("user", "One.\n\nTwo.\n\nThree."),
        ("assistant", "Four"),
        ("user", "Five?"),
    ]
    assert turns([HELLO], system="Be brief.")[0] == ("system", "Be brief.")


def test_a_document_of_text_is_read():
    document = {
        "type": "document",
        "title": "Oz",
        "source": {"type": "text", "media_type": "text/plain", "data": "Kansas"},
    }
    assert turns([{"role": "user", "content": [document, *text("Where?")]}]) == [("user", "Oz\n\nKansas\n\nWhere?")]


def test_how_a_reply_is_made():
    request = parse(
        read(stop_sequences=["END", "STOP"], top_k=3, temperature=0.5, metadata={"user_id": "me"}), Settings()
    )
    assert (request.max_tokens, request.stop) == (5, ("END", "STOP"))
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 3)


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (None, None),
        ({"type": "disabled"}, None),
        ({"type": "enabled", "budget_tokens": 1024}, "whole"),
        ({"type": "adaptive"}, "whole"),
        ({"type": "adaptive", "display": "updates"}, "whole"),
        ({"type": "adaptive", "display": "omitted"}, "omitted"),
    ],
)
def test_thoughts_are_shown_to_those_who_ask(thinking, shown):
    given = read(thinking=thinking).thinking
    assert (given and given.shown) == shown


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"input_schema": {"type": "object"}}]),
        ("tool_choice", {"type": "some"}),
        ("output_config", {"format": {"type": "json_schema"}}),
        ("thinking", {"type": "some"}),
        ("thinking", {"type": "adaptive", "display": "some"}),
        ("max_tokens", -2),
        ("max_tokens", None),
        ("stop_sequences", [5]),
        ("system", [{"type": "image"}]),
        ("messages", []),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "x"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(field, value):
    with pytest.raises(ApiError) as refused:
        parse(read(**{field: value}), Settings())
    assert refused.value.status == 400
    assert refused.value.param.startswith(field)
    assert field in refused.value.message


@pytest.mark.usefixtures("talkative")
def test_a_whole_reply_and_a_stream(ask):
    body = {"messages": [HELLO], "system": "Be brief.", **GREEDY}
    answer = ask(PATH, body, headers={"anthropic-version": "2023-06-01"})
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    assert (whole["type"], whole["role"], whole["stop_reason"]) == ("message", "assistant", "max_tokens")
    (block,) = whole["content"]
    assert block["type"] == "text"
    assert block["text"]
    assert whole["usage"]["output_tokens"] == 12
    assert whole["edgekv"]["budget"] == 64

    events = said(ask(PATH, body | {"stream": True}))
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == block["text"]
    start, *_, delta, stop = events
    assert (start["type"], start["message"]["content"]) == ("message_start", [])
    assert (delta["type"], delta["delta"]["stop_reason"]) == ("message_delta", "max_tokens")
    said_before = {"role": "assistant", "content": whole["content"]}
    resent = ask(PATH, body | {"messages": [HELLO, said_before, {"role": "user", "content": "And then?"}]}).json()
    assert resent["usage"]["cache_read_input_tokens"] > resent["usage"]["input_tokens"] > 0
    assert stop == {"type": "message_stop"}


@pytest.mark.usefixtures("talkative")
def test_a_stop_sequence_is_named(ask):
    (block,) = ask(PATH, {"messages": [HELLO], **GREEDY}).json()["content"]
    stop = block["text"][3:6]
    stopped = ask(PATH, {"messages": [HELLO], **GREEDY, "stop_sequences": ["no such text", stop]}).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    assert stopped["content"][0]["text"] == block["text"][: block["text"].index(stop)]


def test_tokens_are_counted_as_they_are_read(ask):
    body = {"messages": [HELLO], "system": "Be brief.", **GREEDY}
    counted = ask(f"{PATH}/count_tokens", {"messages": [HELLO], "system": "Be brief.", "model": "any"}).json()
    usage = ask(PATH, body).json()["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert ask(f"{PATH}/count_tokens", {"messages": []}).json()["error"]["type"] == "invalid_request_error"


def test_a_conversation_without_a_word_is_refused(ask):
    thought = {"type": "thinking", "thinking": "Hm", "signature": ""}
    for path, body in (
        (PATH, {"messages": [{"role": "user", "content": [thought]}], "max_tokens": 5}),
        ("/v1/responses", {"input": [{"type": "reasoning", "summary": []}]}),
    ):
        refused = ask(path, body)
        assert refused.status_code == 400
        assert "give token ids or messages" in refused.json()["error"]["message"]


def test_what_goes_wrong_has_the_shape_of_messages(ask):
    for answer in (ask(PATH, {"messages": [HELLO]}), ask(PATH, "["), ask(PATH, b"{}", headers={}), ask(PATH)):
        assert 400 <= answer.status_code < 500
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "invalid_request_error"
