"""Feeds: tokens that wait to be decoded. A generator yields each, so that one thread can decode those of several."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from edgekv.binding.cache import Cache

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


def at_once(look: Callable[..., bool]) -> GoesOn:
    """Return a function in the form of `GoesOn`, which yields nothing."""

    def looking(*arguments: int) -> Feeding[bool]:
        yield from ()
        return look(*arguments)

    return looking


ALWAYS = at_once(lambda *_: True)
