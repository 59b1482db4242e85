"""Limits on the memory that requests hold together."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from array import array
from contextlib import ExitStack
from pathlib import Path

import pytest
from asgi import fetched

from edgekv.api.api_errors import ApiError
from edgekv.api.reply_request import LONG_CHARS, ReplyRequest
from edgekv.api.request_bytes import request_bytes
from edgekv.documents.text_file import read_text
from edgekv.generation.logprobs import PACKED_BYTES
from edgekv.server.admission import MemoryBudget, logprob_bytes
from edgekv.server.spill import spill_texts, texts_in_files

LONG = "x" * 10_000
MARK = "\ufeff"  # mark of an encoding at the beginning of a file
HELLO = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    "further",
    [
        {"messages": ({"role": "user", "content": LONG},)},
        {"messages": (HELLO, {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": LONG}}]})},
        {"prompt": LONG},
        {"prompt": array("i", range(2_500))},
        {"tools": ({"function": {"parameters": {"properties": {LONG: {}}}}},)},
        {"json_schema": {"enum": [LONG]}},
        {"stop": ("x", LONG)},
        {"focus": LONG},
        {"user": LONG},
    ],
    ids=["message", "call", "text", "tokens", "tools", "json_schema", "stop", "focus", "user"],
)
def test_whatever_is_long_counts(further):
    short = request_bytes(ReplyRequest(messages=(HELLO,)))
    assert short < 2_000
    assert 10_000 <= request_bytes(ReplyRequest(**further)) < 10_000 + short + 2_000


def test_log_probabilities_of_a_reply_have_a_limit():
    memory = MemoryBudget(128 * PACKED_BYTES)
    assert logprob_bytes(ReplyRequest(max_tokens=10**9), memory) == 0
    assert logprob_bytes(ReplyRequest(n_logprobs=0, max_tokens=32), memory) == 32 * PACKED_BYTES
    assert logprob_bytes(ReplyRequest(n_logprobs=3, max_tokens=8), memory) == 32 * PACKED_BYTES
    with pytest.raises(ApiError, match=r"9 tokens with 3 .* the 32 log probabilities .* at most 8 tokens") as refused:
        logprob_bytes(ReplyRequest(n_logprobs=3, max_tokens=9), memory)
    assert refused.value.status == 400
    with pytest.raises(ApiError, match="any number of tokens"):
        logprob_bytes(ReplyRequest(n_logprobs=0, max_tokens=None), memory)


@pytest.mark.parametrize(
    ("text", "lies_on_the_disk"),
    [
        ("x" * LONG_CHARS, False),
        ("x" + "x" * LONG_CHARS, True),
        ("\0" + "x" * LONG_CHARS, False),
        (" " + " " * LONG_CHARS, False),
        (MARK + " " * LONG_CHARS, True),
        (MARK + "x" * LONG_CHARS, True),
    ],
    ids=["short", "long", "NUL", "blanks", "marked blanks", "marked text"],
)
def test_only_texts_that_are_read_as_files_lie_in_files(text, lies_on_the_disk):
    with ExitStack() as stack:
        laid = spill_texts(ReplyRequest(prompt=text), stack)
        prompt = stack.enter_context(texts_in_files(laid)).prompt
        assert isinstance(prompt, Path) == lies_on_the_disk
        if lies_on_the_disk:
            assert "".join(read_text(prompt)) == text


def gap(text):
    return {"input_prefix": text, "input_suffix": "x"}


def said_by_user(text):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1}


@pytest.fixture
def waiting(open_server):
    """A function that returns the bytes that requests take while they wait: as measured, and as counted."""

    async def taken(application, path, body):
        begun, go = threading.Event(), threading.Event()

        def answer(request, emit, stop):
            begun.set()
            go.wait()
            yield from ()

        application.state.queue._answer = answer
        content, memory = json.dumps(body).encode(), application.state.memory
        tracemalloc.start()
        asked = [asyncio.create_task(fetched(application, path, content)) for _ in range(N_WAITING)]
        while not begun.is_set() or application.state.queue.n_waiting < N_WAITING - 1:
            await asyncio.sleep(0.01)
        found = tracemalloc.get_traced_memory()[0], memory.held
        tracemalloc.stop()
        for request in asked:
            request.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        go.set()
        assert memory.held < 1 << 16
        return found

    def run(path, body):
        with open_server() as application:
            return asyncio.run(taken(application, path, body))

    return run


N_WAITING = 4
TEXT_BYTES = 200_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", said_by_user),
        ("/v1/messages", said_by_user),
        ("/v1/completions", lambda text: {"prompt": text}),
        ("/v1/responses", lambda text: {"input": text}),
        ("/completion", lambda text: {"prompt": text}),
        ("/infill", gap),
        ("/api/chat", said_by_user),
        ("/api/generate", lambda text: {"prompt": text}),
    ],
)
def test_the_text_of_a_request_that_waits_lies_on_the_disk_alone(waiting, path, body):
    n_bytes, _ = waiting(path, body("word " * (TEXT_BYTES // 5)))
    assert n_bytes < N_WAITING * TEXT_BYTES / 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", lambda text: said_by_user(text) | {"n": 2}),
        ("/v1/completions", lambda text: {"prompt": [text, "word"]}),
        ("/completion", lambda text: {"prompt": ["word", text]}),
    ],
)
def test_what_several_replies_are_made_of_counts(waiting, path, body):
    _, n_counted = waiting(path, body("word " * (TEXT_BYTES // 5)))
    assert N_WAITING * TEXT_BYTES < n_counted < N_WAITING * (TEXT_BYTES + 10_000)
