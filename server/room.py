"""The memory that requests may hold together, and the disk that takes what is long."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from edgekv.engine.pieces import PACKED_BYTES
from edgekv.errors import InputError
from edgekv.prompt.spool import spooled

from .failures import RETRY_S, Failure
from .job import Job

log = logging.getLogger("edgekv.server")

LOGPROBS_SHARE = 4  # the log probabilities of one reply may take this part of the room
LONG_CHARS = 1 << 14  # a longer text lies on the disk until it is read, piece by piece


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


def laid_out(job: Job, stack: ExitStack) -> Job:
    """The job with its long texts in files, which are there until the stack is closed. Raises Failure."""
    try:
        return _laid_out_job(job, stack)
    except InputError as error:  # the disk does not take them
        log.warning("%s", error)
        raise Failure(
            503, "no_room", "the disk does not take what this request needs; try again later", retry_after_s=RETRY_S
        ) from error


def _laid_out_job(job: Job, stack: ExitStack) -> Job:
    messages = tuple(_laid_out(message, stack) for message in job.messages)
    prompt = job.prompt
    if isinstance(prompt, str) and _is_long(prompt):
        prompt = stack.enter_context(spooled([prompt]))
    return replace(job, messages=messages, prompt=prompt)


def _laid_out(message: Mapping[str, Any], stack: ExitStack) -> Mapping[str, Any]:
    content = message["content"]
    if not isinstance(content, str) or not _is_long(content):
        return message
    return {**message, "content": stack.enter_context(spooled([content]))}


def _is_long(text: str) -> bool:
    """Whether a text should lie in a file, and may: files of blanks, or with a NUL in them, are refused as no texts.

    Files may begin with a mark of their encoding, which is no part of their text.
    """
    return len(text) > LONG_CHARS and "\0" not in text and not text.removeprefix("\ufeff").isspace()


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
