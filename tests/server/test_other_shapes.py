"""JSON by a schema, calls of tools and log probabilities, as Responses and Messages ask for them."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from asgi import said
from pydantic import BaseModel, Field

ASKED = {"role": "user", "content": "Who is it?"}
DRAWN = {"temperature": 2, "seed": 5, "min_p": 0}


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
    told = [token for event in deltas for token in event["logprobs"]]
    assert [it["token"] for it in told] == [it["token"] for it in part["logprobs"]]
    # the second prompt is read again from its last token on alone, which rounds otherwise than a block
    assert [it["logprob"] for it in told] == pytest.approx([it["logprob"] for it in part["logprobs"]], rel=1e-4)
    (plain,) = respond(ask, max_output_tokens=12)["output"][0]["content"]
    assert plain["logprobs"] == []


# What a coding agent sends: functions in namespaces, and tools that no model here is told of.
AGENT_TOOLS = [
    {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}]},
    {"type": "web_search"},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    {"type": "local_shell"},
    {"type": "mcp", "server_label": "x", "server_url": "https://example.org"},
]


@pytest.mark.parametrize("stream", [False, True])
def test_functions_of_a_namespace_are_called_by_both_names(ask, stream):
    choice = {"type": "function", "namespace": "mcp__files", "name": "read"}
    told = respond(ask, tools=AGENT_TOOLS, tool_choice=choice, stream=stream)
    if stream:
        assert {it["name"] for it in told if it["type"] == "response.function_call_arguments.done"} == {"read"}
        told = told[-1]["response"]
    (call,) = told["output"]
    assert (call["namespace"], call["name"]) == ("mcp__files", "read")
    Weather.model_validate_json(call["arguments"])
    names = ["tools.web_search", "tools.custom", "tools.local_shell", "tools.mcp"]
    assert told["edgekv"]["not_applied"] == names


def test_calls_of_other_tools_are_left_out_of_a_conversation_and_named(ask):
    plain = [ASKED, {"role": "user", "content": "Well?"}]
    others = ("custom_tool_call", "custom_tool_call_output", "local_shell_call", "web_search_call", "mcp_list_tools")
    items = [
        plain[0],
        *({"type": it, "call_id": "1", "input": "x", "output": "y"} for it in (*others, others[0])),
        plain[1],
    ]
    told, same = (respond(ask, input=it, max_output_tokens=1) for it in (items, plain))
    assert told["usage"]["input_tokens"] == same["usage"]["input_tokens"]
    assert told["edgekv"]["not_applied"] == [f"input.{it}" for it in others]
    assert "not_applied" not in same["edgekv"]


def test_a_call_in_a_namespace_is_read_by_the_name_of_its_function(ask):
    call = {"type": "function_call", "call_id": "1", "name": "read", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "x"}
    inside, flat = (call | {"namespace": "mcp__files"}, call | {"name": "mcp__files.read"})
    read = [respond(ask, input=[ASKED, it, result], max_output_tokens=1)["usage"] for it in (inside, flat)]
    assert read[0]["input_tokens"] == read[1]["input_tokens"]


def test_a_choice_of_a_tool_that_is_left_out_is_refused(ask):
    for choice in ({"type": "web_search"}, "required"):
        refused = ask("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": choice})
        assert refused.status_code == 400


# ---- Messages ----

TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}


def talk(ask, **body):
    answer = ask("/v1/messages", {"messages": [ASKED], "max_tokens": 900, **DRAWN} | body)
    assert answer.status_code == 200, answer.text
    return said(answer) if body.get("stream") else answer.json()


@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_the_service_are_left_out_of_messages_and_named(ask, stream):
    blocks = [
        {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "1", "content": []},
        {"type": "text", "text": "Hm."},
    ]
    tools = [TOOL, {"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]
    messages = [ASKED, {"role": "assistant", "content": blocks}, ASKED]
    told = talk(ask, messages=messages, tools=tools, max_tokens=1, stream=stream)
    edgekv = next(it["edgekv"] for it in told if it["type"] == "message_delta") if stream else told["edgekv"]
    assert edgekv["not_applied"] == [
        "tools.web_search_20250305",
        "tools.bash_20250124",
        "messages.server_tool_use",
        "messages.web_search_tool_result",
    ]


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
