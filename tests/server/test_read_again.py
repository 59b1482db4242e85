"""Requests read no tokens again that they have in common with earlier ones, by whatever API."""

from __future__ import annotations

import asyncio

import pytest
from asgi import fetched
from diagonals import HERE_BY_DAY

pytestmark = pytest.mark.usefixtures("talkative")

BLOCK = 64
TEXT = " ".join(f"word{i % 97}" for i in range(100))
WHERE, WHO, WHEN = (f"{TEXT}\n\n{question}" for question in ("Where was it?", "Who was there?", "When, and for long?"))
SAID = "By the river."

APIS = {
    "/v1/chat/completions": lambda messages: {"messages": messages, "temperature": 0, "max_tokens": 6},
    "/v1/responses": lambda messages: {"input": messages, "temperature": 0, "max_output_tokens": 6},
    "/v1/messages": lambda messages: {"messages": messages, "temperature": 0, "max_tokens": 6},
    "/api/chat": lambda messages: {"messages": messages, "options": {"temperature": 0, "num_predict": 6}},
}


@pytest.fixture(params=HERE_BY_DAY, ids=["here", "isolated"], scope="module")
def application(open_server, request):
    """A server with room for all of a conversation."""
    with open_server(options={"isolated": request.param, "budget": 900, "block": BLOCK}) as made:
        yield made


@pytest.fixture(params=APIS)
def read(application, request):
    """A function that sends a conversation; it returns the tokens that were read, and those that were known."""

    def send(first, *others):
        contents = (f"{request.node.name}: {first}", *others)  # no test knows the text of another one
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
        answer = asyncio.run(fetched(application, request.param, APIS[request.param](messages)))
        assert answer.status_code == 200, answer.text
        stats = application.state.pool.sessions[-1].stats
        return stats.prompt_tokens, stats.reused_tokens

    return send


def test_the_same_request_three_times(read):
    n_read, _ = read(WHERE)
    assert n_read > 5 * BLOCK
    assert [read(WHERE) for _ in range(2)] == 2 * [(1, n_read - 1)]  # logits come from the last token


def test_another_question_on_a_text(read):
    n_first, _ = read(WHERE)
    for question in (WHO, WHEN, WHERE):
        n_read, n_known = read(question)
        assert n_read <= BLOCK < n_first / 2 < n_known


def test_another_branch_of_a_conversation(read):
    read(WHERE)
    n_first = sum(read(WHERE, SAID, "Who was there?"))
    for branch in ((WHERE, SAID, "When?"), (WHERE, "In a house.", "When?"), (WHERE, SAID, "Who was there?")):
        n_read, n_known = read(*branch)
        assert n_read <= BLOCK < n_first / 2 < n_known
