"""Every field of other APIs' requests is honoured, refused by name, or of no effect, as docs/server-fields.md says."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgekv.api.api_errors import ApiError
from edgekv.api.body import parsed
from edgekv.api.other_fields import REFUSED
from edgekv.api.server_settings import Settings
from edgekv.server.application import ENDPOINTS

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "server_fields.py"
_spec = importlib.util.spec_from_file_location("server_fields", SCRIPT)
server_fields = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(server_fields)

BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
PLAIN = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
    "/completion": {"prompt": "Hello"},
    "/api/chat": {"messages": HELLO},
    "/api/generate": {"prompt": "Hello"},
    "options": {"messages": HELLO},
}

# a value of each field that is honoured, with what it needs beside it
VALUES = {
    "echo": (True, {}),
    "format": ("json", {}),
    "frequency_penalty": (0.5, {}),
    "function_call": ("none", {"functions": [{"name": "f"}]}),
    "functions": ([{"name": "f"}], {}),
    "grammar": ('root ::= "a"', {}),
    "guided_choice": (["a"], {}),
    "guided_grammar": ('root ::= "a"', {}),
    "guided_json": ({"type": "object"}, {}),
    "guided_regex": ("a", {}),
    "ignore_eos": (True, {"max_tokens": 5}),
    "include": (["message.output_text.logprobs"], {}),
    "input": ("Bye", {}),
    "instructions": ("Be brief.", {}),
    "json_schema": ({"type": "object"}, {}),
    "logit_bias": ({"5": 1}, {}),
    "max_completion_tokens": (3, {}),
    "max_output_tokens": (3, {}),
    "max_tokens": (3, {}),
    "messages": ([{"role": "user", "content": "Bye"}], {}),
    "min_p": (0.5, {}),
    "min_tokens": (2, {}),
    "n": (2, {}),
    "n_predict": (3, {}),
    "n_probs": (2, {}),
    "num_predict": (3, {}),
    "options": ({"seed": 5}, {}),
    "output_config": ({"format": {"type": "json_schema", "schema": {"type": "object"}}}, {}),
    "parallel_tool_calls": (False, {}),
    "presence_penalty": (0.5, {}),
    "prompt": ("Bye", {}),
    "raw": (True, {}),
    "repeat_last_n": (5, {}),
    "repeat_penalty": (1.5, {}),
    "repetition_penalty": (1.5, {}),
    "response_format": ({"type": "json_object"}, {}),
    "return_tokens": (True, {}),
    "seed": (5, {}),
    "stop": ("x", {}),
    "stop_sequences": (["x"], {}),
    "stop_token_ids": ([5], {}),
    "structured_outputs": ({"choice": ["a"]}, {}),
    "suffix": ("Bye", {}),
    "system": ("Be brief.", {}),
    "temperature": (0.3, {}),
    "text": ({"format": {"type": "json_object"}}, {}),
    "tools": (TOOLS, {}),
    "top_k": (5, {}),
    "top_logprobs": (2, {"logprobs": True}),
    "top_p": (0.5, {}),
    "truncate": (False, {}),
    "truncation": ("disabled", {}),
    "user": ("me", {}),
}
OF_API = {  # the same, where an API has a form of its own
    ("/v1/completions", "logprobs"): (2, {}),
    ("/v1/chat/completions", "logprobs"): (True, {}),
    ("/api/chat", "logprobs"): (True, {}),
    ("/api/generate", "logprobs"): (True, {}),
    ("/v1/responses", "tools"): ([{"type": "function", "name": "f"}], {}),
    ("/v1/responses", "tool_choice"): ("none", {"tools": [{"type": "function", "name": "f"}]}),
    ("/v1/messages", "tools"): ([{"name": "f"}], {}),
    ("/v1/messages", "tool_choice"): ({"type": "none"}, {"tools": [{"name": "f"}]}),
    ("/v1/chat/completions", "tool_choice"): ("none", {"tools": TOOLS}),
    ("/v1/messages", "top_logprobs"): None,
}
# fields that say how a reply is told
OF_THE_ANSWER = {"metadata", "model", "response_fields", "stream", "stream_options", "think", "thinking"}

# fields that say again what a body means, with a value that it does not mean
CHECKED = {"add_generation_prompt": False, "best_of": 3, "continue_final_message": True}

CASES = sorted({(path, name) for path, names in server_fields.APIS.values() for name in names.split()})


def request_of(path, further):
    """Return the request that a body becomes; `options` is an object of Ollama's chats."""
    endpoint = BY_PATH["/api/chat" if path == "options" else path]
    body = PLAIN[path] | ({"options": further} if path == "options" else further)
    request = endpoint.parse(parsed(endpoint.body, json.dumps(body).encode()), Settings())
    if not isinstance(request.prompt, (str, type(None))):
        request = replace(request, prompt=tuple(request.prompt))
    return request


@pytest.mark.parametrize(("path", "name"), CASES)
def test_a_field_is_as_the_page_says(path, name):
    body = server_fields.BODIES[path]
    standing, off = server_fields.standing_of(body, name), getattr(body, "refused", {}).get(name)
    plain = request_of(path, {})
    if standing == "refused" or name in CHECKED:
        values = [CHECKED[name]] if name in CHECKED else [{"x": 1}, ["x"], 7.5, True if off is None else "x"]
        for value in values:
            with pytest.raises(ApiError) as refused:
                request_of(path, {name: value})
            assert refused.value.status == 400
            assert name in (refused.value.param or "")
        assert all(request_of(path, {name: value}) == plain for value in (None, *(off or ())))
    elif standing == "no effect":
        assert all(
            request_of(path, {name: value}) == plain for value in (None, *([True] if name == "shift" else [5, "x"]))
        )
    elif name not in OF_THE_ANSWER:
        assert standing == "honoured"
        value, beside = OF_API.get((path, name)) or VALUES[name]
        assert request_of(path, beside | {name: value}) != request_of(path, beside)


def test_the_page_is_what_the_code_says():
    assert server_fields.PAGE.read_text(encoding="utf-8") == server_fields.page()


def test_every_field_that_is_refused_or_has_no_effect_is_on_the_page():
    told = {name for _, names in server_fields.APIS.values() for name in names.split()}
    assert REFUSED.keys() | server_fields.WITHOUT_EFFECT.keys() <= told
    assert not REFUSED.keys() & server_fields.WITHOUT_EFFECT.keys()
