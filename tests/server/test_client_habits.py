"""Fields as clients send them: values that say nothing, any seed, and messages in parts."""

from __future__ import annotations

import json
import re

import pytest

from edgekv.api import chat_completions, completions, llama_completions, messages, ollama_api, responses
from edgekv.api.body import parsed
from edgekv.api.server_settings import Settings

HELLO = [{"role": "user", "content": "Hello"}]
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": ""}}

ENDPOINTS = {
    "/v1/chat/completions": (chat_completions.endpoint, {"messages": HELLO}),
    "/v1/completions": (completions.endpoint, {"prompt": "Hello"}),
    "/v1/responses": (responses.endpoint, {"input": "Hello"}),
    "/v1/messages": (messages.endpoint, {"messages": HELLO, "max_tokens": 5}),
    "/completion": (llama_completions.completing, {"prompt": "Hello"}),
    "/infill": (llama_completions.infilling, {"input_prefix": "Hello", "input_suffix": ""}),
    "/api/chat": (ollama_api.chatting, {"messages": HELLO}),
    "/api/generate": (ollama_api.generating, {"prompt": "Hello"}),
}


def request_of(path, **further):
    """Return the request that a body with these further fields becomes; Ollama has them in an object of its own."""
    endpoint, body = ENDPOINTS[path]
    body = body | ({"options": further} if path.startswith("/api/") else further)
    return endpoint.parse(parsed(endpoint.body, json.dumps(body).encode()), Settings())


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("seed", "expected"), [(-1, None), (None, None), (2**32 - 1, None), (0, 0), (7, 7), (-2, 2**32 - 3)]
)
def test_seed_minus_one_means_any_seed(path, seed, expected):
    assert request_of(path, seed=seed).sampling.seed == expected


def test_replies_with_seed_minus_one_differ(ask, talkative):
    body = {"messages": HELLO, "seed": -1, "temperature": 1.5, "max_tokens": 8}
    texts = {ask("/v1/chat/completions", body).json()["choices"][0]["message"]["content"] for _ in range(6)}
    assert len(texts) > 1


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("stop", "expected"), [("", ()), (None, ()), ([], ()), ([""], ()), ([None, "", "END"], ("END",)), ("x", ("x",))]
)
def test_an_empty_stop_text_ends_nothing(path, stop, expected):
    if path == "/v1/messages":
        assert request_of(path, stop_sequences=stop).stop == expected
    else:
        assert request_of(path, stop=stop).stop == expected


@pytest.mark.parametrize("arguments", ["", None, {}, "{}"])
def test_a_call_may_have_no_arguments(ask, arguments):
    function = {"name": "now", "arguments": arguments}
    said = {"role": "assistant", "content": None, "tool_calls": [CALL | {"function": function}]}
    history = [*HELLO, said, {"role": "tool", "tool_call_id": "1", "content": "12:00"}]
    bodies = {"/v1/chat/completions": {"messages": history, "max_tokens": 2}}
    bodies["/api/chat"] = {"messages": history, "stream": False, "options": {"num_predict": 2}}
    if isinstance(arguments, str) or arguments is None:
        call = {"type": "function_call", "call_id": "1", "name": "now", "arguments": arguments}
        result = {"type": "function_call_output", "call_id": "1", "output": "12:00"}
        bodies["/v1/responses"] = {"input": [*HELLO, call, result], "max_output_tokens": 2}
    if not isinstance(arguments, str):
        used = [{"type": "tool_use", "id": "1", "name": "now", "input": arguments}]
        result = [{"type": "tool_result", "tool_use_id": "1", "content": "12:00"}]
        turns = [*HELLO, {"role": "assistant", "content": used}, {"role": "user", "content": result}]
        bodies["/v1/messages"] = {"messages": turns, "max_tokens": 2}
    for path, body in bodies.items():
        answer = ask(path, body)
        assert answer.status_code == 200, (path, answer.text)


def test_parts_of_a_message_stand_in_lines_of_their_own(ask):
    parts = [{"type": "text", "text": text} for text in ("The shop is shut", "", "When does it open?")]
    prompt = ask("/apply-template", {"messages": [{"role": "user", "content": parts}]}).json()["prompt"]
    assert "shut\nWhen" in prompt


BOUNDED = {"type": "object", "additionalProperties": False}  # else random weights add names and texts of any length
WEATHER = {"name": "weather", "parameters": BOUNDED | {"properties": {"city": {"enum": ["Oslo", "Rome"]}}}}
NOW = {"name": "now", "parameters": BOUNDED | {"properties": {}}}
DRAWN = {"temperature": 2, "seed": 3, "max_tokens": 300, "min_p": 0}


def test_functions_are_tools_in_an_older_form(ask):
    body = {"messages": HELLO, "functions": [WEATHER, NOW], "function_call": {"name": "weather"}, **DRAWN}
    (choice,) = ask("/v1/chat/completions", body).json()["choices"]
    call = choice["message"]["function_call"]
    assert (call["name"], choice["finish_reason"]) == ("weather", "function_call")
    assert "tool_calls" not in choice["message"]
    history = [*HELLO, choice["message"], {"role": "function", "name": "weather", "content": "Rain."}]
    assert ask("/v1/chat/completions", {"messages": history, "max_tokens": 2}).status_code == 200
    lines = ask("/v1/chat/completions", body | {"stream": True}).text.splitlines()
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    assert [it["delta"]["function_call"] for it in chunks if "function_call" in it["delta"]] == [call]
    assert chunks[-1]["finish_reason"] == "function_call"
    text = ask("/v1/chat/completions", body | {"function_call": "none", "max_tokens": 2}).json()["choices"][0][
        "message"
    ]
    assert "function_call" not in text
    both = ask("/v1/chat/completions", body | {"tools": [{"type": "function", "function": NOW}]})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "functions")


def test_only_allowed_tools_are_called(ask):
    names = [{"type": "function", "function": {"name": "now"}}]
    tools = [{"type": "function", "function": it} for it in (WEATHER, NOW)]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}}
    body = {"messages": HELLO, "tools": tools, "tool_choice": choice, **DRAWN}
    for seed in range(4):
        message = ask("/v1/chat/completions", body | {"seed": seed}).json()["choices"][0]["message"]
        assert {call["function"]["name"] for call in message["tool_calls"]} == {"now"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    tools = [{"type": "function"} | it for it in (WEATHER, NOW)]
    told = ask("/v1/responses", {"input": "Hello", "tools": tools, "tool_choice": choice, **DRAWN}).json()
    assert {item["name"] for item in told["output"] if item["type"] == "function_call"} == {"now"}
    wrong = choice | {"tools": [{"type": "function", "name": "other"}]}
    assert ask("/v1/responses", {"input": "Hello", "tools": tools, "tool_choice": wrong}).status_code == 400


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "refusal": "I will not say that."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not say that."}]},
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": ""}},
        {"role": "system", "content": None},
        {"role": "tool", "tool_call_id": "1", "content": None},
        {"role": "function", "name": "now", "content": "12:00"},
    ],
    ids=json.dumps,
)
def test_messages_of_a_history_that_say_nothing_or_in_another_way(ask, message):
    answer = ask("/apply-template", {"messages": [*HELLO, message, *HELLO]})
    assert answer.status_code == 200, answer.text
    assert ("I will not" in answer.json()["prompt"]) == ("I will not" in json.dumps(message))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": True}, "temperature"),
        ({"seed": False}, "seed"),
        ({"n": True}, "n"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"repetition_penalty": 0.5}, "repetition_penalty"),
    ],
    ids=lambda it: str(it)[:40],
)
def test_what_is_no_number_or_too_large_is_refused(ask, change, param):
    error = ask("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2} | change).json()["error"]
    assert error["param"] == param


FORMS = [
    ({"guided_json": {"enum": ["yes", "no"]}}, '"yes"|"no"'),
    ({"guided_json": '{"enum": ["yes", "no"]}'}, '"yes"|"no"'),
    ({"guided_choice": ["yes", 'n"o\\\n', "/é😀"]}, r'yes|n"o\\\n|/é😀'),
    ({"guided_regex": "[ab]/\\/\\d{2}\n"}, r"[ab]//\d\d\n"),
    ({"guided_grammar": 'root ::= "a" | "b"'}, "a|b"),
    ({"structured_outputs": {"json": {"enum": [1, 2]}}}, "1|2"),
    ({"structured_outputs": {"choice": ["x"]}}, "x"),
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, r"\d{3}"),
    ({"structured_outputs": {"grammar": "root ::= [c-d]"}}, "c|d"),
    ({"format": {"enum": ["yes"]}}, '"yes"'),
    ({"format": {"type": "object", "additionalProperties": False}}, r"\{\s*\}"),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("form", "expected"), FORMS, ids=[json.dumps(form)[:40] for form, _ in FORMS])
def test_a_form_of_another_server_is_followed(ask, path, form, expected):
    asked = {"messages": HELLO} if path.startswith("/v1/chat") else {"prompt": "Hello"}
    answer = ask(path, asked | DRAWN | form)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    assert re.fullmatch(expected, text), text


def test_two_forms_are_refused(ask):
    body = {"messages": HELLO, "guided_choice": ["x"], "response_format": {"type": "json_object"}}
    error = ask("/v1/chat/completions", body).json()["error"]
    assert (error["param"], "response_format and guided_choice" in error["message"]) == ("guided_choice", True)


@pytest.mark.parametrize(
    "form",
    [
        {"guided_json": "{"},
        {"guided_json": 5},
        {"guided_choice": []},
        {"guided_choice": [""]},
        {"guided_regex": "(?=a)b"},
        {"guided_grammar": "root ::= ("},
        {"structured_outputs": {"structural_tag": {}}},
        {"format": "xml"},
    ],
    ids=json.dumps,
)
def test_a_form_that_cannot_be_followed_is_refused(ask, form):
    assert ask("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2} | form).status_code == 400


def test_the_repetition_penalty_is_that_of_edgekv():
    assert request_of("/v1/completions", repetition_penalty=1.5).sampling.repeat_penalty == 1.5
    assert request_of("/v1/completions", repetition_penalty=1.5, repeat_penalty=1.2).sampling.repeat_penalty == 1.2


def test_tokens_that_end_a_reply_and_the_least_number(ask, server):
    (a,), (b,) = (ask("/tokenize", {"content": letter}).json()["tokens"] for letter in "ab")
    (end, *_) = server.state.pool.runtime.model.ends
    body = {"prompt": "Hello", "temperature": 0, "repeat_penalty": 1, "max_tokens": 20}

    def reply(**further):
        answer = ask("/v1/completions", body | further).json()
        return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]

    biases = {str(token): 10_000 - 1_000 * i for i, token in enumerate((b, a))}
    assert reply(logit_bias=biases, stop_token_ids=[b]) == ("", "stop")
    assert reply(logit_bias=biases, stop_token_ids=[b], min_tokens=3) == ("aaa", "stop")
    assert reply(logit_bias={str(end): 10_000, str(a): 9_000}, min_tokens=4) == ("aaaa", "stop")
    wrong = ask("/v1/completions", body | {"min_tokens": 21})
    assert (wrong.status_code, "min_tokens" in wrong.json()["error"]["message"]) == (400, True)
