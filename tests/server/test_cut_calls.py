"""Replies that max_tokens cuts after a call of a tool: every API says so, and tells the calls that are whole."""

from __future__ import annotations

import pytest

from edgekv.generation.stats import Stats
from edgekv.prompt.tools import ToolCall
from edgekv.server.session_reply import reason_of

NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTION = {"name": "now", "parameters": NOTHING}
HELLO = {"role": "user", "content": "What time is it?"}
DRAWN = {"temperature": 2, "min_p": 0}


def in_chat_completions(n, **further):
    tools = [{"type": "function", "function": FUNCTION}]
    wishes = {"messages": [HELLO], "max_tokens": n, "tools": tools, "tool_choice": "required", **DRAWN}
    return "/v1/chat/completions", wishes | further


def in_responses(n, **further):
    tools = [{"type": "function"} | FUNCTION]
    wishes = {"input": [HELLO], "max_output_tokens": n, "tools": tools, "tool_choice": "required", **DRAWN}
    return "/v1/responses", wishes | further


def in_messages(n, parallel_tool_calls=True, **further):
    choice = {"type": "any", "disable_parallel_tool_use": not parallel_tool_calls}
    tools = [{"name": "now", "input_schema": NOTHING}]
    wishes = {"messages": [HELLO], "max_tokens": n, "tools": tools, "tool_choice": choice, **DRAWN}
    return "/v1/messages", wishes | further


def of_chat_completions(reply):
    (choice,) = reply["choices"]
    calls = [call["function"]["arguments"] for call in choice["message"].get("tool_calls", ())]
    return choice["finish_reason"], calls


def of_responses(reply):
    why = (reply["incomplete_details"] or {}).get("reason", reply["status"])
    assert all(item["status"] == "completed" for item in reply["output"] if item["type"] == "function_call")
    return why, [item["arguments"] for item in reply["output"] if item["type"] == "function_call"]


def of_messages(reply):
    return reply["stop_reason"], [block["input"] for block in reply["content"] if block["type"] == "tool_use"]


APIS = [
    (in_chat_completions, of_chat_completions, "tool_calls", "length"),
    (in_responses, of_responses, "completed", "max_output_tokens"),
    (in_messages, of_messages, "tool_use", "max_tokens"),
]


@pytest.mark.parametrize(("asked", "told", "called", "cut"), APIS, ids=["chat", "responses", "messages"])
def test_a_reply_that_is_cut_in_its_second_call(ask, asked, told, called, cut):
    for seed in range(30):  # the model ends its reply after the first call for some seeds
        whole = ask(*asked(300, seed=seed, parallel_tool_calls=False)).json()
        reason, calls = told(whole)
        assert (reason, len(calls)) == (called, 1)
        usage = whole["usage"]
        n_tokens = usage.get("completion_tokens") or usage["output_tokens"]
        reason, calls = told(ask(*asked(n_tokens + 4, seed=seed)).json())
        assert len(calls) == 1
        if reason != called:
            break
    assert reason == cut
    reason, calls = told(ask(*asked(4)).json())
    assert (reason, calls) == (cut, [])


@pytest.mark.parametrize(
    ("finish_reason", "has_calls", "reason"),
    [
        ("end", True, "tool_calls"),
        ("stop", True, "tool_calls"),
        ("end", False, "stop"),
        ("length", True, "length"),
        ("context", True, "length"),
        ("loop", True, "loop"),
        ("cancelled", True, "cancelled"),
    ],
)
def test_why_a_reply_ended(finish_reason, has_calls, reason):
    calls = (ToolCall("now", "{}"),) if has_calls else ()
    assert reason_of(Stats(finish_reason=finish_reason, tool_calls=calls)) == reason
