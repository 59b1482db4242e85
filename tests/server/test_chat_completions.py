"""POST /v1/chat/completions, whole and in pieces."""

from __future__ import annotations

import tracemalloc

import pytest
from asgi import said
from reply_usage import USAGE

from edgekv.api import chat_completions
from edgekv.api.json_stream import json_parts
from edgekv.api.reply_request import Ended, Piece, ReplyRequest
from edgekv.generation.logprobs import Token, TokenLogprob, packed
from edgekv.server.admission import MemoryBudget, logprob_bytes

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.mark.usefixtures("talkative")
def test_a_whole_reply(ask):
    answer = ask(PATH, {"messages": HELLO, "model": "any", "unheard_of": {"x": 1}, **GREEDY})
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply["object"] == "chat.completion"
    assert reply["id"].startswith("chatcmpl-")
    (choice,) = reply["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    usage = reply["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    told = reply["edgekv"]
    assert told["seen"] == usage["prompt_tokens"] + 11  # the last token was said and not fed
    assert told["kept"] == told["seen"]
    assert told["evicted"] == told["evictions"] == 0
    assert 0 < told["peak_bytes"] < told["ceiling_bytes"] == 4 << 30
    assert told["budget"] == 64


@pytest.mark.usefixtures("talkative")
def test_a_stream_says_the_same(ask):
    body = {"messages": HELLO, **GREEDY}
    whole = ask(PATH, body).json()
    answer = ask(PATH, body | {"stream": True, "stream_options": {"include_usage": True}})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = said(answer)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    *pieces, ended, usage = chunks[1:]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in pieces)
    assert text == whole["choices"][0]["message"]["content"]
    assert ended["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12
    assert usage["edgekv"]["budget"] == 64
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_a_stream_tells_usage_only_where_it_is_asked_for(ask):
    *chunks, done = said(ask(PATH, {"messages": HELLO, "stream": True, **GREEDY}))
    assert done == "[DONE]"
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.usefixtures("talkative")
def test_a_resent_conversation_costs_its_difference(ask):
    first = ask(PATH, {"messages": HELLO, **GREEDY}).json()
    history = [*HELLO, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    second = ask(PATH, {"messages": history, **GREEDY}).json()["usage"]
    assert second["prompt_tokens_details"]["cached_tokens"] > first["usage"]["prompt_tokens"]
    assert second["prompt_tokens"] > second["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_required_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
            "unsupported_value",
        ),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": "warm"}, "temperature", "invalid_value"),
        ({"top_p": -1}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"max_tokens": -2}, "max_tokens", "invalid_value"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "invalid_value"),
        ({"logit_bias": {"word": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5" * 5000: 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": True}}, "logit_bias", "invalid_value"),
        ({"logit_bias": [["word", 1]]}, "logit_bias", "invalid_value"),
        ({"mirostat": 2}, "mirostat", "unsupported_value"),
        ({"dry_multiplier": 0.8}, "dry_multiplier", "unsupported_value"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs", "unsupported_value"),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "grammar", "invalid_value"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "grammar", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"edgekv": {"on_overflow": "explode"}}, "edgekv.on_overflow", "invalid_value"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_is_refused_by_name(ask, change, param, code):
    answer = ask(PATH, {"messages": HELLO, **GREEDY, **change})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["code"]) == (param, code)
    assert param.rpartition(".")[2] in error["message"] or param in error["message"]


def test_errors_of_transport(ask):
    assert ask(PATH).status_code == 405
    assert ask("/v1/nothing", {}).json()["error"]["code"] == "not_found"
    assert ask(PATH, "{", headers={"Content-Type": "text/plain"}).status_code == 415
    assert ask(PATH, "{").json()["error"]["code"] == "invalid_json"
    for headers, status in (({}, 400), ({"Origin": "http://localhost"}, 415)):  # a page of the web names its origin
        assert ask(PATH, None, method="POST", content=b"{", headers=headers).status_code == status
    deep = '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"
    assert ask(PATH, deep).json()["error"]["code"] == "invalid_json"
    assert ask(PATH, " " * (5 << 20)).status_code == 413


def test_seeds_are_of_any_size(ask):
    bodies = [{"messages": HELLO, "seed": seed, "max_tokens": 4} for seed in (-1, 2**63, 0)]
    assert all(ask(PATH, body).status_code == 200 for body in bodies)


def test_texts_of_any_characters_are_read(ask):
    """Clients send back what a model said, whatever that was."""
    for text in ("\0", " ", "\u2028", "\U0001f600", "\ufffd", "a\0b" * 6000):
        history = [*HELLO, {"role": "assistant", "content": text}, *HELLO]
        assert ask(PATH, {"messages": history, **GREEDY}).status_code == 200, repr(text[:9])
    assert ask(PATH, '{"messages": [{"role": "user", "content": "\\ud800"}]}').json()["error"]["code"] == "invalid_json"


def test_log_probabilities_of_a_reply_take_what_is_counted():
    """However many there are, the answer is never there as a whole."""
    others = tuple(TokenLogprob(i, b" word", -1.5) for i in range(20))
    request = ReplyRequest(n_logprobs=20, max_tokens=1_000)

    def work():
        body = chat_completions.ChatBody(messages=HELLO)
        renderer = chat_completions.endpoint.render(body, request, "model")
        for _ in range(request.max_tokens):
            renderer.add(Piece(" word", logprobs=packed(Token(7, b" word", -0.5, others))))
        renderer.add(Ended("stop", USAGE))
        return sum(map(len, json_parts(renderer.whole())))

    work()  # what is imported late is imported
    tracemalloc.start()
    n_bytes = work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < logprob_bytes(request, MemoryBudget(4 << 20)) < n_bytes
