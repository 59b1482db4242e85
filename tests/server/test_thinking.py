"""Thoughts of a model whose chat template opens the tag, in each API."""

from __future__ import annotations

import asyncio

import pytest
from asgi import fetched, said

from edgekv.prompt import template

HELLO = {"role": "user", "content": "Hello there"}
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def thinker(open_server):
    """A server whose model never gets further than its thoughts."""
    rendered = template.render
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(template, "render", lambda *arguments: rendered(*arguments) + "<think>\n")
        with open_server() as application:
            yield application


@pytest.fixture
def ask(thinker, talkative):
    return lambda path, body: asyncio.run(fetched(thinker, path, body))


def test_chat_completions_have_reasoning_content(ask):
    body = {"messages": [HELLO], **GREEDY}
    reply = ask("/v1/chat/completions", body).json()
    message = reply["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"] == ""
    assert 6 < reply["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 12
    chunks = said(ask("/v1/chat/completions", body | {"stream": True}))[:-1]
    deltas = [chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks]
    assert "".join(deltas) == message["reasoning_content"]


def test_responses_have_an_item(ask):
    reply = ask("/v1/responses", {"input": "Hello there", "temperature": 0, "max_output_tokens": 12}).json()
    (item,) = reply["output"]
    assert (item["type"], item["content"][0]["type"]) == ("reasoning", "reasoning_text")
    assert item["content"][0]["text"]
    assert 6 < reply["usage"]["output_tokens_details"]["reasoning_tokens"] <= 12


def test_messages_have_a_block_where_it_is_asked_for(ask):
    body = {"messages": [HELLO], **GREEDY}
    whole = ask("/v1/messages", body | {"thinking": {"type": "adaptive"}}).json()
    (block,) = whole["content"]
    assert block["thinking"]
    assert (block["type"], block["signature"]) == ("thinking", "")
    assert 6 < whole["usage"]["output_tokens_details"]["thinking_tokens"] <= 12
    assert ask("/v1/messages", body).json()["content"] == [{"type": "text", "text": ""}]


def test_what_follows_a_schema_is_said_and_not_thought(ask):
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"enum": ["yes", "no"]}}}
    message = ask("/v1/chat/completions", {"messages": [HELLO], "response_format": schema, **GREEDY}).json()
    assert message["choices"][0]["message"]["content"] in ('"yes"', '"no"')
