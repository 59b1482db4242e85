"""Admission of requests by the memory that all of them hold together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import cast

from edgekv.api.api_errors import ApiError
from edgekv.api.reply_request import ReplyRequest
from edgekv.generation.logprobs import PACKED_BYTES

LOGPROBS_SHARE = 4  # the log probabilities of one reply may take 1/4 of the memory budget


class MemoryBudget:
    """Bytes that requests hold together: bodies that come in, requests that wait, log probabilities of replies.

    Any thread may use it. limit: the most bytes; held: bytes that are reserved now
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._lock = threading.Lock()

    def reserve(self, n_bytes: int) -> None:
        """Reserve bytes. Raises ApiError if they do not fit; nothing is reserved then."""
        with self._lock:
            has_room = self.held + n_bytes <= self.limit
            if has_room:
                self.held += n_bytes
        if not has_room:
            raise ApiError(
                429, "rate_limit_exceeded", "the requests that wait fill their memory; try again later", retry_after_s=1
            )

    @contextmanager
    def reserved(self, n_bytes: int) -> Iterator[None]:
        """Reserve bytes for the length of the block. Raises ApiError."""
        self.reserve(n_bytes)
        try:
            yield
        finally:
            self.release(n_bytes)

    def release(self, n_bytes: int) -> None:
        """Release bytes that were reserved."""
        with self._lock:
            self.held -= n_bytes


def logprob_bytes(request: ReplyRequest, memory: MemoryBudget) -> int:
    """Return the most bytes that log probabilities of a reply take. Raises ApiError if that is too much."""
    if request.n_logprobs is None:
        return 0
    n_each, most = request.n_logprobs + 1, memory.limit // LOGPROBS_SHARE // PACKED_BYTES
    n_prompt = _most_tokens(request.prompt) if request.echo else 0
    if request.max_tokens is None or (request.max_tokens + n_prompt) * n_each * request.n_choices > most:
        several = f"{request.n_choices} replies" if request.n_choices > 1 else "a reply"
        raise ApiError(
            400,
            "invalid_value",
            f"{several} of {request.max_tokens or 'any number of'} tokens with {request.n_logprobs} alternatives each "
            f"has more than the {most} log probabilities that are told; ask for at most "
            f"{most // n_each // request.n_choices} tokens, with those of prompts that are repeated, or for fewer "
            "alternatives",
        )
    return (request.max_tokens + n_prompt) * n_each * PACKED_BYTES


def _most_tokens(prompt: object) -> int:
    """Return the most tokens of a prompt: a token stands for a byte, or for several; one may come before a text."""
    return len(prompt.encode()) + 1 if isinstance(prompt, str) else len(cast(Sized, prompt))
