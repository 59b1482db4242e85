"""Tools, schemas, stop texts, log probabilities and streams together, with the model here and in a worker."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgi import fetched, said
from diagonals import HERE_BY_DAY

ASKED = {"role": "user", "content": "What is the weather in Oslo?"}
DRAWN = {"temperature": 2, "seed": 5, "max_tokens": 120, "min_p": 0}
CITY = {"enum": ["Oslo", "Rome", "Paris"]}
CITIES = {"type": "array", "items": CITY, "minItems": 3, "maxItems": 3}
PARAMETERS = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
FORMAT = {"type": "json_schema", "name": "cities", "schema": CITIES}


@pytest.fixture(scope="module", params=HERE_BY_DAY, ids=["here", "isolated"])
def ask(open_server, request):
    """A function from an address and a body to the answer."""
    with open_server(options={"isolated": request.param, "budget": 512}) as application:
        yield lambda path, body: asyncio.run(fetched(application, path, body))


def spelled(tokens):
    """The text of tokens with log probabilities."""
    assert all(token["logprob"] < 0 and len(token["top_logprobs"]) == 2 for token in tokens)
    return b"".join(bytes(token["bytes"]) for token in tokens).decode(errors="replace")


def assert_alike(tokens, others):
    """Tokens are those of another reply, whose prompt was read in blocks of another length: it rounds otherwise."""
    assert [token["bytes"] for token in tokens] == [token["bytes"] for token in others]
    found, expected = ([token["logprob"] for token in told] for told in (tokens, others))
    assert found == pytest.approx(expected, rel=1e-4)


def chatted(ask, **body):
    """(content, tokens, calls, finish reason) of a chat completion, which is the same whole and in pieces."""
    body = {"messages": [ASKED], "logprobs": True, "top_logprobs": 2, **DRAWN} | body
    whole = ask("/v1/chat/completions", body).json()["choices"][0]
    calls = [call["function"] for call in whole["message"].get("tool_calls", ())]
    found = (whole["message"]["content"] or "", (whole["logprobs"] or {}).get("content", []), calls)

    *chunks, _ = said(ask("/v1/chat/completions", body | {"stream": True}))
    choices = [chunk["choices"][0] for chunk in chunks]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    tokens = [token for choice in choices for token in (choice["logprobs"] or {}).get("content", ())]
    told = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert (text, told) == (found[0], calls)
    assert_alike(tokens, found[1])
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    return (*found, whole["finish_reason"])


def test_calls_of_tools_with_log_probabilities(ask):
    content, tokens, calls, reason = chatted(ask, tools=[FUNCTION], tool_choice="required", parallel_tool_calls=False)
    assert (content, tokens, reason) == ("", [], "tool_calls")
    assert json.loads(calls[0]["arguments"])["city"] in CITY["enum"]


def test_a_text_where_tools_may_be_called_with_log_probabilities(ask):
    content, tokens, *_ = chatted(ask, tools=[FUNCTION], max_tokens=20)
    assert content
    assert spelled(tokens).startswith(content)


def test_a_schema_with_a_stop_text_and_log_probabilities(ask):
    form = {"type": "json_schema", "json_schema": FORMAT}
    whole, tokens, _, reason = chatted(ask, response_format=form)
    assert (len(json.loads(whole)), spelled(tokens), reason) == (3, whole, "stop")
    content, tokens, _, reason = chatted(ask, response_format=form, stop=['",'])
    assert (content, reason) == (whole[: whole.index('",')], "stop")
    assert spelled(tokens).startswith(content)


def test_a_response_with_a_schema_and_log_probabilities_in_pieces(ask):
    further = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "text": {"format": FORMAT}}
    body = {"input": [ASKED], "temperature": 2, "seed": 5, "stream": True} | further
    events = said(ask("/v1/responses", body))
    (part,) = events[-1]["response"]["output"][0]["content"]
    assert len(json.loads(part["text"])) == 3
    assert spelled(part["logprobs"]) == part["text"]
    of = {event["type"]: event for event in events}
    assert of["response.output_text.done"]["logprobs"] == part["logprobs"]
    assert of["response.content_part.done"]["part"] == part
    told = [token for event in events if event["type"].endswith("text.delta") for token in event["logprobs"]]
    assert told == part["logprobs"]


def test_a_message_with_a_schema_and_a_stop_text_in_pieces(ask):
    body = {"messages": [ASKED], "stop_sequences": ['",'], "output_config": {"format": FORMAT}, **DRAWN}
    whole = ask("/v1/messages", body).json()
    events = said(ask("/v1/messages", body | {"stream": True}))
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert [block["text"] for block in whole["content"]] == [text]
    assert text.removeprefix('["').strip() in CITY["enum"]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", '",')


def test_a_text_with_a_stop_text_and_log_probabilities_in_pieces(ask):
    body = {"prompt": "Once", "logprobs": 2, **DRAWN, "max_tokens": 20}
    text = ask("/v1/completions", body).json()["choices"][0]["text"]
    body["stop"] = text[4:6]
    (whole,) = ask("/v1/completions", body).json()["choices"]
    assert (whole["text"], whole["finish_reason"]) == (text[: text.index(body["stop"])], "stop")
    *chunks, _ = said(ask("/v1/completions", body | {"stream": True}))
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for some in told for value in some[name]] == whole["logprobs"][name]
