"""A coding agent's conversations: what is alike in them is read once."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgi import fetched

from edgekv.api.body import parsed
from edgekv.api.messages import MessagesBody, parse
from edgekv.api.server_settings import Settings

PATH = "/v1/messages"
MORE = "These skills are there. " * 6
RULES = "You are an agent that works in a folder. Look before you write. " * 9


def request(number, question, *, in_one=False, folder="/work"):
    """A request of the shape of Claude Code's: a line for accounts, rules, tools, a question, and more rules after it.

    in_one: the system text is one block; folder: stands in the rules after the question
    """
    billing = f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli; cch={number:05x};"
    parts = [billing, "You are Claude Code.", RULES]
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
    return {
        "model": "any",
        "max_tokens": 4,
        "temperature": 0,
        "system": "\n".join(parts) if in_one else [{"type": "text", "text": it} for it in parts],
        "tools": [{"name": f"tool_{i}", "description": "It works. " * 4, "input_schema": schema} for i in range(6)],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": question}]},
            {"role": "system", "content": f"You work in {folder}. {MORE}"},
        ],
    }


@pytest.mark.usefixtures("talkative")
def test_a_second_conversation_begins_where_the_rules_and_tools_end(open_server):
    with open_server(options={"budget": 1800}) as application:
        for i, question in enumerate(("Mend the test.", "Why is it slow?", "Name it.")):
            answer = asyncio.run(fetched(application, PATH, request(i, question)))
            usage = answer.json()["usage"]
            cached, fresh = usage["cache_read_input_tokens"], usage["input_tokens"]
            assert i == 0 or cached >= 0.95 * (cached + fresh)
            assert answer.json()["edgekv"]["evicted"] == 0


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("budget", [1800, 400], ids=["held", "evicted"])
def test_a_conversation_in_another_folder_begins_where_the_tools_end(open_server, budget):
    with open_server(options={"budget": budget}) as application:
        n_more = len(asyncio.run(fetched(application, "/tokenize", {"content": MORE})).json()["tokens"])
        for i, folder in enumerate(("/work", "/home/me/other", "/srv", "/work")):
            answer = asyncio.run(fetched(application, PATH, request(i, f"{i} is it?", folder=folder)))
            usage = answer.json()["usage"]
            cached, fresh = usage["cache_read_input_tokens"], usage["input_tokens"]
            assert i == 0 or 0.7 * (cached + fresh) < cached
            assert (fresh < n_more) == (i == 3)  # the further rules of that folder are known


@pytest.mark.parametrize("in_one", [False, True])
def test_the_line_for_accounts_is_left_out(in_one):
    systems = {
        parse(parsed(MessagesBody, json.dumps(request(i, "Hello", in_one=in_one)).encode()), Settings()).messages[0][
            "content"
        ]
        for i in range(2)
    }
    assert len(systems) == 1
    assert systems.pop().startswith("You are Claude Code.\n")


@pytest.mark.parametrize("system", ["x-anthropic-billing-header: a; b;", "X-Anthropic-Billing-Header: a\n\n"])
def test_that_line_alone_is_no_system_text(system):
    body = request(0, "Hello") | {"system": system}
    messages = parse(parsed(MessagesBody, json.dumps(body).encode()), Settings()).messages
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"].endswith(MORE)


def test_a_line_like_it_elsewhere_is_read():
    body = request(0, "Hello") | {"system": "Rules.\nx-anthropic-billing-header: a"}
    messages = parse(parsed(MessagesBody, json.dumps(body).encode()), Settings()).messages
    assert messages[0]["content"] == "Rules.\nx-anthropic-billing-header: a"


def test_rules_after_a_reply_stay_where_they_are():
    body = request(0, "Hello")
    body["messages"] += [{"role": "assistant", "content": "Yes?"}, {"role": "system", "content": "Be brief."}]
    messages = parse(parsed(MessagesBody, json.dumps(body).encode()), Settings()).messages
    assert [message["role"] for message in messages] == ["system", "system", "user", "assistant", "system"]
