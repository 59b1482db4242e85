"""Bytes that requests hold while they wait."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from .reply_request import ReplyRequest


def request_bytes(request: ReplyRequest) -> int:
    """Return the bytes of a request: its messages or prompt, its tools, and all else that may be long."""
    held = (
        request.messages,
        request.prompt,
        request.suffix,
        request.files,
        request.tools,
        request.tool_choice,
        request.json_schema,
        request.grammar,
        request.sampling.logit_bias,
        request.stop,
        request.focus,
        request.user,
    )
    return sum(map(bytes_of, held))


def bytes_of(value: object) -> int:
    """Return the bytes of a value as JSON has it, or of a body with such values."""
    value = getattr(value, "__dict__", value)  # the fields of a body
    n_bytes = sys.getsizeof(value)
    if isinstance(value, Mapping):
        return n_bytes + sum(bytes_of(key) + bytes_of(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return n_bytes + sum(map(bytes_of, value))
    return n_bytes
