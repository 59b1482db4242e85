"""Fields of llama.cpp's server, and values that its clients send: each has an effect, or an error."""

from __future__ import annotations

import json

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": "Who is it?"}]
DRAWN = {"temperature": 2, "seed": 5, "max_tokens": 60, "min_p": 0}
GRAMMAR = 'root ::= "yes" | "no, " [0-9]{3}'
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


def reply(ask, path=CHAT, **body):
    asked = {"messages": ASKED} if path == CHAT else {"prompt": "It is"}
    answer = ask(path, asked | DRAWN | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(answer):
    choice = answer["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_grammar_is_followed(ask, path):
    for seed in range(5):
        text = text_of(reply(ask, path, grammar=GRAMMAR, seed=seed))
        assert text == "yes" or (text.startswith("no, ") and text[4:].isdecimal()), text


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "form",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    ],
    ids=["json_schema", "object", "flat", "openai"],
)
def test_a_schema_is_followed_wherever_it_stands(ask, path, form):
    assert json.loads(text_of(reply(ask, path, **form)))["colour"] in ("red", "blue")


def test_other_apis_follow_a_grammar_too(ask):
    response = ask("/v1/responses", {"input": "Who?", "grammar": 'root ::= "yes"', **DRAWN})
    assert response.json()["output"][0]["content"][0]["text"] == "yes"
    message = ask("/v1/messages", {"messages": ASKED, "grammar": 'root ::= "yes"', **DRAWN})
    assert message.json()["content"][0]["text"] == "yes"


def test_a_grammar_that_does_not_parse_is_refused(ask):
    error = ask(CHAT, {"messages": ASKED, "grammar": "root ::= ("}).json()["error"]
    assert error["code"] == "invalid_schema"
    assert "grammar" in error["message"]


@pytest.mark.usefixtures("talkative")
def test_no_tokens_are_a_prompt_that_is_read(ask):
    for body in ({"max_tokens": 0}, {"max_tokens": None, "n_predict": 0}):
        answer = reply(ask, TEXT, **body)
        assert (text_of(answer), answer["usage"]["completion_tokens"]) == ("", 0)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["prompt_tokens"] > 0


def test_minus_one_token_is_a_reply_without_a_limit(ask):
    body = {"grammar": "root ::= [a-z]{2200}", "top_p": 1, "top_k": 0}
    cut = reply(ask, **body, max_tokens=None)
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 1024)
    answer = reply(ask, **body, max_tokens=-1)
    assert len(text_of(answer)) == 2200
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.usefixtures("talkative")
def test_values_that_turn_samplers_off_are_taken(ask):
    for off in ({"top_k": -1}, {"top_p": 1.5}, {"top_k": -1, "top_p": 3, "min_p": 0}):
        on = {name: 0 if name == "top_k" else min(value, 1) for name, value in off.items()}
        assert text_of(reply(ask, **off)) == text_of(reply(ask, **on))
    neutral = {"mirostat": 0, "typical_p": 1.0, "dry_multiplier": 0, "samplers": []}
    assert text_of(reply(ask, **neutral)) == text_of(reply(ask))


@pytest.mark.usefixtures("talkative")
def test_a_bias_forces_and_forbids_tokens(ask):
    (token,) = ask("/tokenize", {"content": "a"}).json()["tokens"]
    said = ask("/detokenize", {"tokens": [token]}).json()["content"]
    body = {"temperature": 0, "max_tokens": 4, "repeat_penalty": 1}
    for bias in ({str(token): 100}, [[token, 100]]):
        assert text_of(reply(ask, TEXT, **body, logit_bias=bias)) == 4 * said
    forced = {str(token): 100, str(token + 1): 90}
    banned = [[token, False], [token + 1, 99]]
    assert text_of(reply(ask, TEXT, **body, logit_bias=forced)) == 4 * said
    assert said not in text_of(reply(ask, TEXT, **body, logit_bias=banned))


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_model_and_loops_end_no_reply_that_ignores_eos(ask, server, path):
    ends = {str(token): 1000 for token in server.state.pool.runtime.model.ends}
    body = {"temperature": 0, "repeat_penalty": 1, "max_tokens": 90, "logit_bias": ends}
    assert reply(ask, path, **body)["choices"][0]["finish_reason"] == "stop"
    whole = reply(ask, path, **body, ignore_eos=True)
    assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == ("length", 90)
    assert text_of(reply(ask, path, **body, ignore_eos=True, grammar=GRAMMAR)).startswith(("yes", "no, "))
    endless = body | {"max_tokens": -1, "ignore_eos": True}
    refused = ask(path, {"messages": ASKED} | endless if path == CHAT else {"prompt": "It is"} | endless)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "ignore_eos")


@pytest.mark.usefixtures("talkative")
def test_penalties_change_what_is_said(ask):
    (token,) = ask("/tokenize", {"content": "a"}).json()["tokens"]
    body = {
        "temperature": 0,
        "max_tokens": 12,
        "repeat_penalty": 1,
        "logit_bias": {str(token): 100, str(token + 1): 90},
    }
    plain = text_of(reply(ask, TEXT, **body))
    assert plain == 12 * "a"
    assert text_of(reply(ask, TEXT, **body, frequency_penalty=2)).count("b") >= 2
    assert text_of(reply(ask, TEXT, **body, presence_penalty=2, repeat_last_n=0)) == plain
