"""`echo`: the reply begins with the prompt, with the log probability of each of its tokens, as lm-eval needs it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from asgi import fetched, said, until_nothing_is_held

from edgekv.generation.logprobs import NextTokenLogprobs

PATH = "/v1/completions"
PROMPT = "Once upon a time there was a house by the river"
GREEDY = {"temperature": 0, "max_tokens": 5}

pytestmark = pytest.mark.usefixtures("talkative")


def ids_of(ask, text=PROMPT):
    return ask("/tokenize", {"content": text}).json()["tokens"]


@pytest.mark.parametrize("as_ids", [False, True])
def test_the_prompt_comes_before_the_reply(ask, as_ids):
    prompt = ids_of(ask) if as_ids else PROMPT
    plain = ask(PATH, {"prompt": prompt, **GREEDY}).json()
    echoed = ask(PATH, {"prompt": prompt, "echo": True, **GREEDY}).json()
    assert echoed["choices"][0]["text"] == PROMPT + plain["choices"][0]["text"]
    assert echoed["usage"]["completion_tokens"] == 5
    *chunks, _ = said(ask(PATH, {"prompt": prompt, "echo": True, "stream": True, **GREEDY}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == echoed["choices"][0]["text"]


def test_a_long_prompt_comes_from_its_file(ask):
    text = " ".join(f"word{i % 97}" for i in range(3000))
    assert len(text) > 1 << 14
    echoed = ask(PATH, {"prompt": text, "echo": True, **GREEDY}).json()
    assert echoed["choices"][0]["text"].startswith(text)


def test_each_token_of_a_prompt_has_its_log_probability(ask, server):
    """The model gives the same when the tokens before are read alone."""
    ids = ids_of(ask)
    answer = ask(PATH, {"prompt": ids, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0}).json()
    (choice,) = answer["choices"]
    told = choice["logprobs"]
    assert {len(values) for values in told.values()} == {len(ids) + 1}
    assert "".join(told["tokens"]) == choice["text"]
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (len(ids), 1)
    runtime = server.state.pool.runtime
    for n in (1, 5, len(ids) - 1):
        with runtime.session(history=True) as session:
            assert list(session.continue_from(ids[:n], max_tokens=0)) == []
            logits = runtime.context.logits_array().copy()
        expected = NextTokenLogprobs(logits, 2).of(ids[n], runtime.model.piece(ids[n]), runtime.model)
        assert told["token_logprobs"][n] == pytest.approx(expected.logprob, abs=1e-3)
        best = sorted(told["top_logprobs"][n].values())
        assert best == pytest.approx(sorted(other.logprob for other in expected.top), abs=1e-3)


def test_a_prompt_alone_is_scored(ask):
    """lm-eval and others ask for no new token, or for one, of several prompts at once."""
    prompts = [ids_of(ask), ids_of(ask, "In the end")]
    alone = [
        ask(PATH, {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}).json()["choices"][0]
        for prompt in prompts
    ]
    together = ask(PATH, {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 0}).json()["choices"]
    for one, prompt, many in zip(alone, prompts, together, strict=True):
        assert one["finish_reason"] == "length"
        assert len(one["logprobs"]["tokens"]) == len(prompt)
        assert many["logprobs"]["tokens"] == one["logprobs"]["tokens"]
        assert np.allclose(many["logprobs"]["token_logprobs"][1:], one["logprobs"]["token_logprobs"][1:], atol=1e-3)


def test_stop_texts_are_of_the_reply_alone(ask):
    echoed = ask(PATH, {"prompt": PROMPT, "echo": True, "logprobs": 0, "stop": "upon", **GREEDY}).json()
    assert echoed["choices"][0]["text"].startswith(PROMPT)
    assert echoed["usage"]["completion_tokens"] == 5


def test_a_prompt_of_more_tokens_than_cells_is_scored_as_it_is_read(ask):
    ids = ids_of(ask, " ".join(f"word{i % 97}" for i in range(200)))
    answer = ask(PATH, {"prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 0}).json()
    logprobs = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert len(logprobs) == len(ids) > 200
    assert all(value < 0 for value in logprobs[1:])
    assert answer["edgekv"]["evicted"] > 0


def test_log_probabilities_of_a_prompt_are_counted_before_it_is_read(server):
    body = {"prompt": [1] * 30_000, "echo": True, "logprobs": 1, "max_tokens": 0}
    refused = asyncio.run(fetched(server, PATH, body))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
    until_nothing_is_held(server)
