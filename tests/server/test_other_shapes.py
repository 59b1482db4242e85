"""JSON by a schema, calls of tools and log probabilities, as Responses and Messages ask for them."""

from __future__ import annotations

import json
from typing import Literal

from asgi import said
from pydantic import BaseModel, Field

ASKED = {"role": "user", "content": "Who is it?"}
DRAWN = {"temperature": 2, "seed": 5}


class Weather(BaseModel):
    """Tells the weather."""

    model_config = {"extra": "forbid"}

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=7)


SCHEMA = Weather.model_json_schema()


# ---- Responses ----

FUNCTION = {"type": "function", "name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}


def respond(ask, **body):
    answer = ask("/v1/responses", {"input": [ASKED], "max_output_tokens": 900, **DRAWN} | body)
    assert answer.status_code == 200, answer.text
    return said(answer) if body.get("stream") else answer.json()


def test_a_response_of_json(ask):
    wanted = {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}
    response = respond(ask, text={"format": wanted})
    Weather.model_validate_json(response["output"][0]["content"][0]["text"])
    assert response["text"]["format"]["schema"] == SCHEMA
    missing = ask("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}).json()["error"]
    assert missing["param"] == "text.format.schema"


def test_a_response_calls_a_tool_and_reads_what_came_of_it(ask):
    response = respond(ask, tools=[FUNCTION], tool_choice={"type": "function", "name": "weather"})
    (call,) = response["output"]
    assert (call["type"], call["name"], response["status"]) == ("function_call", "weather", "completed")
    Weather.model_validate_json(call["arguments"])
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "It rains."}
    after = respond(ask, input=[ASKED, call, output], tools=[FUNCTION], tool_choice="none", max_output_tokens=5)
    assert [item["type"] for item in after["output"]] == ["message"]
    assert after["usage"]["input_tokens_details"]["cached_tokens"] > response["usage"]["input_tokens"]


def test_a_call_in_a_stream_of_a_response(ask):
    events = respond(ask, tools=[FUNCTION], tool_choice="required", parallel_tool_calls=False, stream=True)
    (done,) = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    Weather.model_validate_json(done["arguments"])
    assert events[-1]["response"]["output"][0]["arguments"] == done["arguments"]


def test_log_probabilities_of_a_response(ask):
    include = ["message.output_text.logprobs"]
    body = {"include": include, "top_logprobs": 2, "max_output_tokens": 12}
    (part,) = respond(ask, **body)["output"][0]["content"]
    assert 0 < len(part["logprobs"]) <= 12
    assert b"".join(bytes(token["bytes"]) for token in part["logprobs"]).decode(errors="replace") == part["text"]
    assert all(len(token["top_logprobs"]) == 2 for token in part["logprobs"])
    deltas = [event for event in respond(ask, **body, stream=True) if event["type"] == "response.output_text.delta"]
    assert [token for event in deltas for token in event["logprobs"]] == part["logprobs"]
    (plain,) = respond(ask, max_output_tokens=12)["output"][0]["content"]
    assert plain["logprobs"] == []


def test_tools_that_others_carry_out_are_refused(ask):
    for path, tool in (("/v1/responses", {"type": "web_search"}), ("/v1/messages", {"type": "bash_1", "name": "bash"})):
        refused = ask(path, {"input": "x", "messages": [ASKED], "max_tokens": 5, "tools": [tool]})
        assert refused.status_code == 400
        assert "tools.0.type" in refused.json()["error"]["message"]


# ---- Messages ----

TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}


def talk(ask, **body):
    answer = ask("/v1/messages", {"messages": [ASKED], "max_tokens": 900, **DRAWN} | body)
    assert answer.status_code == 200, answer.text
    return said(answer) if body.get("stream") else answer.json()


def test_a_message_of_json(ask):
    message = talk(ask, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    Weather.model_validate_json(message["content"][0]["text"])


def test_a_message_calls_a_tool_and_reads_what_came_of_it(ask):
    message = talk(ask, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"})
    (call,) = message["content"]
    assert (call["type"], call["name"], message["stop_reason"]) == ("tool_use", "weather", "tool_use")
    Weather.model_validate(call["input"])
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "It rains."}]}
    messages = [ASKED, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    after = talk(ask, messages=messages, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=5)
    assert [block["type"] for block in after["content"]] == ["text"]
    assert after["usage"]["cache_read_input_tokens"] > message["usage"]["input_tokens"]
    counted = ask("/v1/messages/count_tokens", {"messages": [ASKED], "tools": [TOOL]}).json()
    assert counted["input_tokens"] == message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]


def test_a_call_in_a_stream_of_a_message(ask):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    events = talk(ask, tools=[TOOL], tool_choice=choice, stream=True)
    (start,) = [event for event in events if event["type"] == "content_block_start"]
    assert start["content_block"] | {"id": None} == {"type": "tool_use", "id": None, "name": "weather", "input": {}}
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"input_json_delta"}
    Weather.model_validate(json.loads("".join(delta["partial_json"] for delta in deltas)))


ODD = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)"}}}


def test_other_apis_tell_relaxed_tools_too(ask):
    tool = {"name": "odd", "description": "", "parameters": ODD}
    response = respond(ask, tools=[{"type": "function", **tool}], max_output_tokens=5)
    message = talk(ask, tools=[{"name": "odd", "input_schema": ODD}], max_tokens=5)
    for answer in (response, message):
        assert answer["edgekv"]["relaxed_tools"] == {"odd": ["pattern"]}
