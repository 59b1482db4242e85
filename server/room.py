"""The memory that requests may hold together."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from edgekv.engine.pieces import PACKED_BYTES

from .failures import Failure
from .job import Job

LOGPROBS_SHARE = 4  # the log probabilities of one reply may take this part of the room


class Room:
    """Bytes that requests hold together: bodies that come in, what waits of them, and log probabilities of replies.

    For any thread. limit: the most of them
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = threading.Lock()

    def take(self, n_bytes: int) -> None:
        """Hold so many more. Raises Failure where there is no room for them; nothing is held then."""
        with self._lock:
            has_room = self._held + n_bytes <= self.limit
            if has_room:
                self._held += n_bytes
        if not has_room:
            raise Failure(
                429, "rate_limit_exceeded", "the requests that wait fill their memory; try again later", retry_after_s=1
            )

    @contextmanager
    def held(self, n_bytes: int) -> Iterator[None]:
        """Hold so many more as long as the block lasts. Raises Failure."""
        self.take(n_bytes)
        try:
            yield
        finally:
            self.give_back(n_bytes)

    def give_back(self, n_bytes: int) -> None:
        """Hold so many less."""
        with self._lock:
            self._held -= n_bytes


def told_bytes(job: Job, room: Room) -> int:
    """Bytes that the log probabilities of its reply may take. Raises Failure where that is too much for one reply."""
    if job.n_logprobs is None:
        return 0
    n_each, most = job.n_logprobs + 1, room.limit // LOGPROBS_SHARE // PACKED_BYTES
    if job.max_tokens is None or job.max_tokens * n_each > most:
        raise Failure(
            400,
            "invalid_value",
            f"a reply of {job.max_tokens or 'any number of'} tokens with {job.n_logprobs} alternatives each has more "
            f"than the {most} log probabilities that are told; ask for at most {most // n_each} tokens, or for fewer "
            "alternatives",
        )
    return job.max_tokens * n_each * PACKED_BYTES


def held_bytes(job: Job) -> int:
    """Bytes that a job takes: its messages or its prompt, its tools and whatever else may be long."""
    held = (job.messages, job.prompt, job.tools, job.tool_choice, job.shape, job.stop, job.focus, job.user)
    return sum(map(_bytes_of, held))


def _bytes_of(value: object) -> int:
    n_bytes = sys.getsizeof(value)
    if isinstance(value, Mapping):
        return n_bytes + sum(_bytes_of(key) + _bytes_of(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return n_bytes + sum(map(_bytes_of, value))
    return n_bytes
