"""What requests hold together."""

from __future__ import annotations

from array import array
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgekv.engine.pieces import PACKED_BYTES
from edgekv.prompt.text import read_text
from edgekv.server.failures import Failure
from edgekv.server.job import Job
from edgekv.server.room import Room, held_bytes, told_bytes
from edgekv.server.shelf import LONG_CHARS, in_files, laid_down

LONG = "x" * 10_000
MARK = "\ufeff"  # of an encoding, where a file begins with it
HELLO = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    "further",
    [
        {"messages": ({"role": "user", "content": LONG},)},
        {"messages": (HELLO, {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": LONG}}]})},
        {"prompt": LONG},
        {"prompt": array("i", range(2_500))},
        {"tools": ({"function": {"parameters": {"properties": {LONG: {}}}}},)},
        {"shape": {"enum": [LONG]}},
        {"stop": ("x", LONG)},
        {"focus": LONG},
        {"user": LONG},
    ],
    ids=["message", "call", "text", "tokens", "tools", "shape", "stop", "focus", "user"],
)
def test_whatever_is_long_counts(further):
    short = held_bytes(Job(messages=(HELLO,)))
    assert short < 2_000
    assert 10_000 <= held_bytes(Job(**further)) < 10_000 + short + 2_000


def test_log_probabilities_of_a_reply_have_a_limit():
    room = Room(128 * PACKED_BYTES)
    assert told_bytes(Job(max_tokens=10**9), room) == 0
    assert told_bytes(Job(n_logprobs=0, max_tokens=32), room) == 32 * PACKED_BYTES
    assert told_bytes(Job(n_logprobs=3, max_tokens=8), room) == 32 * PACKED_BYTES
    with pytest.raises(Failure, match=r"9 tokens with 3 .* the 32 log probabilities .* at most 8 tokens") as refused:
        told_bytes(Job(n_logprobs=3, max_tokens=9), room)
    assert refused.value.status == 400
    with pytest.raises(Failure, match="any number of tokens"):
        told_bytes(Job(n_logprobs=0, max_tokens=None), room)


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
        laid = laid_down(Job(prompt=text), stack)
        prompt = stack.enter_context(in_files(laid)).prompt
        assert isinstance(prompt, Path) == lies_on_the_disk
        if lies_on_the_disk:
            assert "".join(read_text(prompt)) == text.removeprefix(MARK)
