"""What requests hold together."""

from __future__ import annotations

from array import array

import pytest

from edgekv.server.job import Job
from edgekv.server.room import held_bytes

LONG = "x" * 10_000
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
        {"user": LONG},
    ],
    ids=["message", "call", "text", "tokens", "tools", "shape", "stop", "user"],
)
def test_whatever_is_long_counts(further):
    short = held_bytes(Job(messages=(HELLO,)))
    assert short < 2_000
    assert 10_000 <= held_bytes(Job(**further)) < 10_000 + short + 2_000
