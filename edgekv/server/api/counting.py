"""Counting the tokens of a conversation, which each API has an address for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekv.server.admission import request_bytes
from edgekv.server.reply_request import ReplyRequest

from .endpoint import Work


def token_count(messages: tuple[Mapping[str, Any], ...], tools: tuple[dict[str, Any], ...], **about: str) -> Work:
    """Return the counting of a conversation's tokens, with its tools. about: further fields of the answer"""
    n_bytes = request_bytes(ReplyRequest(messages=messages, tools=tools))
    return Work(n_bytes, lambda runtime: about | {"input_tokens": runtime.count_tokens(messages, tools=tools)})
