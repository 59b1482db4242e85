"""Fields as clients send them: values that say nothing, any seed, and messages in parts."""

from __future__ import annotations

import json

import pytest

from edgekv.server.api import chat_completions, completions, llama_completions, messages, ollama_api, responses
from edgekv.server.api.body import parsed
from edgekv.server.server_settings import Settings

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
