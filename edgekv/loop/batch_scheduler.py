"""The order of batches: of the feeds that wait, which are decoded next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekv.cells.feeds import Feed

MOST_PASSED = 4  # batches of other texts that a text waits for, although it waits longer than they do


@dataclass(eq=False, slots=True)
class Share:
    """Time and tokens that a reply had. n_read: tokens of its texts; owed_s: seconds that replies may have first"""

    n_read: int = 0
    owed_s: float = 0.0


@dataclass(eq=False, slots=True)
class WaitingFeed:
    """A feed that waits for a batch. share: of its reply

    n_passed: batches of other texts that went before this one, although it waited longer
    has_failed: it failed together with others, and is tried again by itself
    """

    feed: Feed
    share: Share
    n_passed: int = 0
    has_failed: bool = False

    @property
    def is_alone(self) -> bool:
        """True if its batch has nothing else, as of a block, which is then computed as it is without other sessions."""
        feed = self.feed
        return len(feed.tokens) > 1 or len(feed.draft) > 0 or feed.part_ends is not None or self.has_failed

    @property
    def has_waited_long(self) -> bool:
        """True if it lets no further batch of another text pass."""
        return self.n_passed == MOST_PASSED

    @property
    def is_due(self) -> bool:
        """True if replies had as much time as the last such batch of its reply, or if it has waited long enough."""
        return self.has_waited_long or self.share.owed_s <= 0


class Scheduler:
    """Orders the batches: a block or a probe of a text, or a token of every reply.

    A reply waits for one block at most. After its block a text waits until replies had as much time as that took, so a
    text and replies beside it have half of the time each, and several texts as much each as replies. Of the texts, the
    one goes first of which least was read, so a short prompt does not wait for the blocks of a long one. A text that
    waits lets at most MOST_PASSED batches of others pass.
    """

    def __init__(self) -> None:
        self._was_alone = False  # the last batch had a block of a text

    def next(self, waiting: Sequence[WaitingFeed]) -> list[WaitingFeed]:
        """Return the feeds of the next batch. waiting: at least one, in order of arrival"""
        if len(waiting) == 1:
            return list(waiting)
        texts = [it for it in waiting if it.is_alone]
        replies = [it for it in waiting if not it.is_alone]
        if not texts:
            return replies
        patient = [text for text in texts if text.has_waited_long]
        first = patient[0] if patient else min(texts, key=lambda text: text.share.n_read)
        if replies and (self._was_alone or not first.is_due):
            return replies
        for text in texts[: texts.index(first)]:
            text.n_passed += 1
        return [first]

    def note(self, batch: Sequence[WaitingFeed], waiting: Sequence[WaitingFeed], seconds: float) -> None:
        """Note a batch that was decoded: a text owes its time to replies, which pay theirs to all texts that wait."""
        first = batch[0]
        self._was_alone = first.is_alone
        if self._was_alone:
            first.share.owed_s = seconds
            first.share.n_read += len(first.feed.tokens)
        elif len(waiting) > len(batch):
            for share in {it.share for it in waiting if it.is_alone}:
                share.owed_s -= seconds
