"""Limits on the memory that requests hold together."""

from __future__ import annotations

from array import array
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgekv.generation.logprobs import PACKED_BYTES
from edgekv.prompt.text import read_text
from edgekv.server.admission import MemoryBudget, logprob_bytes, request_bytes
from edgekv.server.api_errors import ApiError
from edgekv.server.reply_request import ReplyRequest
from edgekv.server.spill import LONG_CHARS, spill_texts, texts_in_files

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
        (MARK + " " * LONG_CHARS, False),
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
            assert "".join(read_text(prompt)) == text.removeprefix(MARK)
