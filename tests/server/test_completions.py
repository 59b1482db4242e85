"""POST /v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgi import said, until_nothing_is_held

PATH = "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.mark.usefixtures("talkative")
def test_a_text_goes_on(ask):
    whole = ask(PATH, {"prompt": "Once upon a time", **GREEDY}).json()
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["finish_reason"] == "length"
    text = whole["choices"][0]["text"]
    assert text
    tokens = ask("/tokenize", {"content": "Once upon a time", "add_special": True}).json()["tokens"]
    assert whole["usage"]["prompt_tokens"] == len(tokens)
    for prompt in (["Once upon a time"], tokens, [tokens]):
        assert ask(PATH, {"prompt": prompt, **GREEDY}).json()["choices"][0]["text"] == text
    *chunks, done = said(ask(PATH, {"prompt": tokens, "stream": True, **GREEDY}))
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


@pytest.mark.usefixtures("talkative")
def test_a_long_text_is_read_from_a_file(ask):
    text = " ".join(f"word{i % 97}" for i in range(6000))
    assert len(text) > 1 << 14
    reply = ask(PATH, {"prompt": text, **GREEDY}).json()
    usage, told = reply["usage"], reply["edgekv"]
    assert told["seen"] == usage["prompt_tokens"] + 7 > 6000
    assert told["kept"] < 100


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 99}, "logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(ask, change, param):
    answer = ask(PATH, {"prompt": "x", **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


def test_ids_that_the_vocabulary_lacks(ask):
    answer = ask(PATH, {"prompt": [1 << 30], **GREEDY})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_prompt")
    assert ask("/detokenize", {"tokens": [1 << 30]}).status_code == 400


def test_tokens_and_back(ask):
    text = "Hello w\u00f6rld \U0001f600 <|im_start|>"
    tokens = ask("/tokenize", {"content": text}).json()["tokens"]
    assert ask("/detokenize", {"tokens": tokens}).json()["content"] == text
    assert len(ask("/tokenize", {"content": text, "parse_special": True}).json()["tokens"]) < len(tokens)


def test_bodies_of_too_many_values_are_refused(ask):
    for body in ('{"prompt": [' + "1," * 70_000 + "1]}", '{"x": [' + '"",' * 40_000 + '""]}', "[" * 70_000):
        assert ask(PATH, body).json()["error"]["code"] == "invalid_json"
    text = '1,2,3 [x] {y} \\" \\\\ ' * 10_000  # what stands within a text counts as one
    messages = {"messages": [{"role": "user", "content": text}]}
    assert ask("/v1/messages/count_tokens", messages).status_code == 200


def test_what_is_tokenised_counts_while_it_is(ask, server, monkeypatch):
    held = []
    until_nothing_is_held(server)  # earlier tests have ended

    def tokenize(text, **_):
        held.append(server.state.memory.held)
        return [1] * len(text)

    monkeypatch.setattr(server.state.pool.runtime, "tokenize", tokenize)
    assert ask("/tokenize", {"content": "x" * 65_536}).status_code == 200
    refused = ask("/tokenize", {"content": "\u00e9" * 32_769})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "content")
    assert "65538 bytes" in refused.json()["error"]["message"]
    assert held == [40 * 65_536]
    until_nothing_is_held(server)


def test_a_long_answer_counts_until_the_client_has_it(server):
    """However slow it is: what it is not sent yet is held, and there is room for so much."""
    held = []

    async def receive():
        return {"type": "http.request", "body": json.dumps({"content": "a text " * 5_000}).encode()}

    async def send(message):
        held.append(server.state.memory.held)

    scope = {"type": "http", "method": "POST", "path": "/tokenize", "query_string": b"", "http_version": "1.1"}
    scope |= {"headers": [(b"content-type", b"application/json")], "server": ("127.0.0.1", 1), "root_path": ""}
    asyncio.run(server(scope, receive, send))
    assert len(held) > 3  # the head, and parts of the body
    assert all(n_bytes > 2 * 8_192 for n_bytes in held)
    until_nothing_is_held(server)
