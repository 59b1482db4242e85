"""Several replies to one body: `n` of them, and a reply to each of several prompts."""

from __future__ import annotations

import asyncio

import pytest
from asgi import fetched, said

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
DRAWN = {"temperature": 2, "top_k": 0, "top_p": 1, "max_tokens": 8, "min_p": 0}
PROMPTS = ["Once upon a time", "In the end", "Once upon a hill"]

pytestmark = pytest.mark.usefixtures("talkative")


def texts(answer):
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize("seed", [None, 3])
def test_several_replies_to_one_conversation_differ(ask, seed):
    one = ask(CHAT, {"messages": HELLO, "seed": 3, **DRAWN}).json()
    answer = ask(CHAT, {"messages": HELLO, "n": 3, "seed": seed, **DRAWN}).json()
    found = texts(answer)
    assert len(set(found)) == 3
    assert (found[0] == texts(one)[0]) == (seed == 3)
    assert texts(ask(CHAT, {"messages": HELLO, "n": 3, "seed": 3, **DRAWN}).json())[1:] != [found[0]] * 2
    usage = answer["usage"]
    assert usage["completion_tokens"] == 24
    assert usage["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24
    assert answer["timings"]["predicted_n"] == 24


@pytest.mark.parametrize("as_ids", [False, True])
def test_each_prompt_has_its_reply(ask, as_ids):
    """The replies are those that each prompt gets alone."""
    prompts = PROMPTS
    if as_ids:
        prompts = [ask("/tokenize", {"content": text, "add_special": True}).json()["tokens"] for text in PROMPTS]
    body = {"temperature": 0, "max_tokens": 6, "logprobs": 1}
    alone = [ask(TEXT, {"prompt": prompt, **body}).json() for prompt in prompts]
    together = ask(TEXT, {"prompt": prompts, **body}).json()
    assert texts(together) == [texts(answer)[0] for answer in alone]
    for choice, answer in zip(together["choices"], alone, strict=True):
        assert choice["logprobs"]["tokens"] == answer["choices"][0]["logprobs"]["tokens"]
        assert choice["logprobs"]["text_offset"][0] == 0
    assert together["usage"]["prompt_tokens"] == sum(answer["usage"]["prompt_tokens"] for answer in alone)
    assert together["usage"]["completion_tokens"] == 18


def test_several_replies_to_each_of_several_prompts(ask):
    answer = ask(TEXT, {"prompt": PROMPTS[:2], "n": 2, "best_of": 2, "seed": 1, **DRAWN}).json()
    found = texts(answer)
    alone = [texts(ask(TEXT, {"prompt": prompt, "n": 2, "seed": 1, **DRAWN}).json()) for prompt in PROMPTS[:2]]
    assert found == [*alone[0], *alone[1]]
    assert answer["usage"]["completion_tokens"] == 32


@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": HELLO, "n": 2}), (TEXT, {"prompt": PROMPTS[:2]})])
def test_a_stream_has_the_choices_one_after_another(ask, path, asked):
    body = asked | {"seed": 3, **DRAWN}
    whole = texts(ask(path, body).json())
    *chunks, done = said(ask(path, body | {"stream": True, "stream_options": {"include_usage": True}}))
    assert done == "[DONE]"
    found, ends = ["", ""], []
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        found[choice["index"]] += choice["delta"].get("content", "") if path == CHAT else choice["text"]
        if choice["finish_reason"]:
            ends.append(choice["index"])
    assert (found, ends) == (whole, [0, 1])
    assert chunks[-1]["usage"]["completion_tokens"] == 16


def test_a_prompt_that_cannot_be_read_is_an_error_of_the_body(ask):
    refused = ask(TEXT, {"prompt": [[1], [1 << 30]], **DRAWN})
    assert refused.json()["error"]["code"] == "invalid_prompt"
    *_, last = said(ask(TEXT, {"prompt": [[1], [1 << 30]], "stream": True, **DRAWN}))
    assert last["error"]["code"] == "invalid_prompt"


def test_other_apis_give_one_reply(ask):
    for path, body in (("/v1/responses", {"input": "x"}), ("/v1/messages", {"messages": HELLO, "max_tokens": 1})):
        refused = ask(path, body | {"n": 2})
        assert (refused.status_code, "n=2" in refused.json()["error"]["message"]) == (400, True)


def test_log_probabilities_of_all_choices_are_counted(server):
    body = {"prompt": PROMPTS * 2, "logprobs": 20, **DRAWN}
    refused = asyncio.run(fetched(server, TEXT, body | {"max_tokens": 300}))
    assert refused.status_code == 400
    assert "6 replies of 300 tokens" in refused.json()["error"]["message"]
    assert "at most 260 tokens" in refused.json()["error"]["message"]
    assert asyncio.run(fetched(server, TEXT, body | {"max_tokens": 4})).status_code == 200
