"""Events of the Responses API, read with the types of the official client."""

from __future__ import annotations

import functools

import pytest
from imported_later import imported_later
from reply_usage import USAGE

from edgekv.api.api_errors import ApiError
from edgekv.api.reply_request import Ended, Piece, PromptProgress, ToolCall
from edgekv.api.response_events import ResponseEvents

pydantic = pytest.importorskip("pydantic")
types = imported_later("openai.types.responses")


@functools.cache
def event_type():
    return pydantic.TypeAdapter(types.ResponseStreamEvent)


def checked(events):
    """Events as the client reads them."""
    return [event_type().validate_python(event) for event in events]


def response():
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": "a-model",
        "output": [],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
    }


def pushed(*events):
    """The events that clients get, and the whole response."""
    machine = ResponseEvents(response())
    told = checked([told for event in events for told in machine.push(event)])
    return told, types.Response.model_validate(machine.whole())


def test_a_text_in_pieces():
    told, whole = pushed(PromptProgress(10, 100), Piece("One"), Piece(" two"), Ended("stop", USAGE))
    assert [event.type.removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in told] == list(range(len(told)))
    assert told[0].response.output == []
    assert told[-1].response == whole
    assert (whole.status, whole.output_text) == ("completed", "One two")
    assert (whole.usage.input_tokens, whole.usage.input_tokens_details.cached_tokens) == (100, 60)
    assert (whole.usage.total_tokens, whole.usage.output_tokens_details.reasoning_tokens) == (107, 3)
    assert whole.edgekv["evictions"] == 2


def test_thoughts_are_an_item_of_their_own():
    told, whole = pushed(Piece("Hm", True), Piece("."), Piece(" Yes"), Ended("stop", USAGE))
    thoughts, said = whole.output
    assert (thoughts.type, thoughts.content[0].text, thoughts.status) == ("reasoning", "Hm", "completed")
    assert (said.type, said.content[0].text) == ("message", ". Yes")
    deltas = [event for event in told if event.type.endswith("delta")]
    assert [(event.output_index, event.item_id) for event in deltas] == [(0, thoughts.id), (1, said.id), (1, said.id)]


def test_calls_of_tools():
    calls = (ToolCall("call_1", "add", '{"a":1}'), ToolCall("call_2", "add", "{}"))
    told, whole = pushed(Piece("Adding."), *calls, Ended("tool_calls", USAGE))
    assert [item.type for item in whole.output] == ["message", "function_call", "function_call"]
    assert [(item.call_id, item.name, item.arguments) for item in whole.output[1:]] == [
        ("call_1", "add", '{"a":1}'),
        ("call_2", "add", "{}"),
    ]
    assert whole.status == "completed"
    assert [event.output_index for event in told if event.type == "response.output_item.added"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("loop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("cancelled", "incomplete", None),
    ],
)
def test_how_it_ended(reason, status, why):
    told, whole = pushed(Piece("One"), Ended(reason, USAGE))
    assert told[-1].type == f"response.{status}"
    assert (whole.status, whole.output[0].status) == (status, status)
    assert (whole.incomplete_details and whole.incomplete_details.reason) == why
    assert whole.edgekv["finish_reason"] == reason


def test_an_empty_reply_is_a_message():
    _, whole = pushed(Ended("stop", USAGE))
    assert (whole.output[0].type, whole.output_text) == ("message", "")


def test_a_failure_ends_what_has_begun():
    machine = ResponseEvents(response())
    list(machine.push(Piece("One")))
    told = [
        event_type().validate_python(event)
        for event in machine.failed(ApiError(503, "memory_ceiling", "memory ran short"))
    ]
    assert [event.type for event in told][-2:] == ["response.output_item.done", "response.failed"]
    failed = told[-1].response
    assert (failed.status, failed.output_text, failed.output[0].status) == ("failed", "One", "incomplete")
    assert failed.error.message == "memory ran short"


def test_a_failure_before_anything():
    told = list(ResponseEvents(response()).failed(ApiError(504, "timeout", "too long")))
    assert [event["type"] for event in told] == ["response.created", "response.in_progress", "response.failed"]
