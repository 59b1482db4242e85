"""Feeds: tokens that wait to be decoded. A generator yields each, so that one thread can decode those of several."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from edgekv.binding.cache import Cache
from edgekv.options import Options

from .thread_tuner import ThreadTuner

Result = TypeVar("Result")

# Yields each `Feed` and receives the row of its logits. Other values that it yields are for its driver.
Feeding: TypeAlias = Generator[object, int, Result]
GoesOn: TypeAlias = Callable[..., Feeding[bool]]  # looks at a work under way; returns False to stop it

RECALLING = object()  # is yielded between two heads of a recall: the ceiling may move, and nobody else goes on


@dataclass(eq=False, slots=True)
class Feed:
    """Tokens of one cache, to be decoded.

    draft: follows a single token; the row is then that of the token
    part_ends: ends of the parts of a probe; None = the tokens are fed
    """

    cache: Cache
    tokens: Sequence[int]
    want_logits: bool = False
    draft: Sequence[int] = ()
    part_ends: Sequence[int] | None = None


def run(feeding: Feeding[Result], decode: Callable[[Sequence[Feed]], list[int]]) -> Result:
    """Decode each feed of a generator at once; returns its result."""
    resume: Callable[..., object] = feeding.send
    given: object = None
    while True:
        try:
            feed = resume(given)
        except StopIteration as end:
            result: Result = end.value
            return result
        resume, given = feeding.send, None
        if feed is RECALLING:  # nobody moves the ceiling of what is alone
            continue
        assert isinstance(feed, Feed)
        try:
            (given,) = decode([feed])
        except BaseException as error:
            resume, given = feeding.throw, error


class Decoder:
    """Decodes feeds of the caches of one context, which all have a slot of it.

    n_steps: batches so far. Each overwrites the logits of the batch before
    is_shared: several conversations are being answered, so none of them makes drafts
    """

    def __init__(self, options: Options) -> None:
        self.n_steps = 0
        self.is_shared = False
        self._n_slots = options.parallel
        # A thread that waits for a device is idle on an idle machine, too, and tokens of several sessions are batches.
        self._threads = ThreadTuner(1 if options.gpu_layers or self._n_slots > 1 else options.n_threads)

    def decode(self, feeds: Sequence[Feed]) -> list[int]:
        """Decode feeds in one batch; returns the row of each one's logits. A draft or a probe comes alone.

        Raises what the cache raises.
        """
        first = feeds[0]
        self.n_steps += 1
        if first.part_ends is not None:
            first.cache.probe(first.tokens, first.part_ends)
            return [-1]
        if first.draft:
            first.cache.feed_draft(first.tokens[0], first.draft)
            return [0]
        if self._n_slots > 1:
            return Cache.feed_together([(feed.cache, feed.tokens, feed.want_logits) for feed in feeds])
        started, own_started = time.perf_counter(), time.thread_time()
        first.cache.feed(first.tokens, want_logits=first.want_logits)
        if len(first.tokens) == 1:
            seconds, own_seconds = time.perf_counter() - started, time.thread_time() - own_started
            if self._threads.decoded(seconds, own_seconds):
                first.cache.decode_with(self._threads.now)
        return [-1]


def at_once(look: Callable[..., bool]) -> GoesOn:
    """Return a function in the form of `GoesOn`, which yields nothing."""

    def looking(*arguments: int) -> Feeding[bool]:
        yield from ()
        return look(*arguments)

    return looking


ALWAYS = at_once(lambda *_: True)
