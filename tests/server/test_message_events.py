"""Events of the Messages API, read with the types of the official client."""

from __future__ import annotations

import functools
import sys

import pytest
from imported_later import imported_later
from reply_usage import USAGE

from edgekv.api.api_errors import ApiError
from edgekv.api.message_events import MessageEvents, error_body
from edgekv.api.messages import message_of
from edgekv.api.reply_request import Ended, Piece, PromptProgress, ToolCall

pydantic = pytest.importorskip("pydantic")
types = imported_later("anthropic.types")


@functools.cache
def event_type():
    return pydantic.TypeAdapter(types.RawMessageStreamEvent)


def checked(events):
    """Events as the client reads them."""
    return [event_type().validate_python(event) for event in events]


def pushed(*events, thoughts="whole"):
    """The events that clients get, and the whole message."""
    machine = MessageEvents(message_of("a-model"), thoughts=thoughts)
    told = checked([told for event in events for told in machine.push(event)])
    return told, types.Message.model_validate(machine.whole())


def test_a_text_in_pieces():
    told, whole = pushed(
        PromptProgress(10, 40), Piece("One"), PromptProgress(20, 40), Piece(" two"), Ended("stop", USAGE)
    )
    assert [event.type for event in told] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert told[0].message.content == []
    assert told[0].message.usage.input_tokens == 40
    assert [block.text for block in whole.content] == ["One two"]
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)
    assert (whole.usage.input_tokens, whole.usage.cache_read_input_tokens, whole.usage.output_tokens) == (40, 60, 7)
    assert told[-2].usage.input_tokens == 40
    assert told[-2].edgekv == whole.edgekv
    assert whole.edgekv["evictions"] == 2


@pytest.mark.parametrize(
    ("thoughts", "content"),
    [
        ("whole", [("thinking", "Hm."), ("text", "Yes")]),
        ("omitted", [("thinking", ""), ("text", "Yes")]),
        (None, [("text", "Yes")]),
    ],
)
def test_thoughts_are_given_to_those_who_ask(thoughts, content):
    told, whole = pushed(Piece("Hm", True), Piece(".", True), Piece("Yes"), Ended("stop", USAGE), thoughts=thoughts)
    assert [(block.type, getattr(block, block.type)) for block in whole.content] == content
    starts = [event for event in told if event.type == "content_block_start"]
    assert [(event.index, event.content_block.type) for event in starts] == [
        (i, kind) for i, (kind, _) in enumerate(content)
    ]
    assert whole.usage.output_tokens_details.thinking_tokens == 3


def test_calls_of_tools():
    calls = (ToolCall("call_1", "add", '{"a":1}'), ToolCall("call_2", "add", "{}"))
    told, whole = pushed(Piece("Adding."), *calls, Ended("tool_calls", USAGE))
    assert whole.stop_reason == "tool_use"
    assert [(block.id, block.name, block.input) for block in whole.content[1:]] == [
        ("call_1", "add", {"a": 1}),
        ("call_2", "add", {}),
    ]
    deltas = [event.delta.partial_json for event in told if event.type == "content_block_delta" and event.index]
    assert deltas == ['{"a":1}', "{}"]


def test_numbers_that_no_float_holds_are_told_as_json():
    """JSON has no infinity: arguments that are values in a message have the largest float instead."""
    written = f'{{"a":1e999,"b":[-1e999,{"9" * 5000},{"9" * 400}]}}'
    _, whole = pushed(ToolCall("call_1", "add", written), Ended("tool_calls", USAGE))
    most = sys.float_info.max
    assert whole.content[0].input == {"a": most, "b": [-most, most, int("9" * 400)]}


@pytest.mark.parametrize(
    ("ended", "reason", "sequence"),
    [
        (Ended("length", USAGE), "max_tokens", None),
        (Ended("loop", USAGE), "end_turn", None),
        (Ended("stop", USAGE, stop_text="END"), "stop_sequence", "END"),
    ],
)
def test_how_it_ended(ended, reason, sequence):
    told, whole = pushed(Piece("One"), ended)
    assert (whole.stop_reason, whole.stop_sequence) == (reason, sequence)
    assert (told[-2].delta.stop_reason, told[-2].delta.stop_sequence) == (reason, sequence)


def test_an_empty_reply_has_a_text():
    _, whole = pushed(Ended("stop", USAGE))
    assert [block.text for block in whole.content] == [""]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (415, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_errors_have_types_of_their_own(status, kind):
    error = ApiError(status, "a_code", "what to do")
    assert error_body(error) == {"type": "error", "error": {"type": kind, "message": "what to do"}}
    assert list(MessageEvents(message_of("a-model"), thoughts=None).failed(error)) == [error_body(error)]
