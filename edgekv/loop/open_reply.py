"""A reply that its client has not finished, and the feed or message that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from edgekv.cells.feeds import Feeding
from edgekv.conversations.conversation import Conversation
from edgekv.generation.stats import Stats

from .batch_scheduler import Share, WaitingFeed
from .loop_messages import Ended

Answer = Callable[[object], None]


class Post(NamedTuple):
    """A message, with a function that takes its answer, and the client that waits for it."""

    message: object
    answer: Answer
    client: Hashable


@dataclass(eq=False, slots=True)
class OpenReply:
    """A reply in the loop.

    events: feeds, pieces and progress, from `Conversation.reply`
    reports: its client wants the progress
    client: who waits, or has waited last
    answer: takes the next answer; None = nobody waits for one
    is_ready: it goes on at once
    is_recalling: it is between two heads of a recall
    feed: waits for a batch; None = it does not
    ended: how it ended, before its client asked
    paused_since: time of its last piece
    comes_back_soon: its last pause was too short for a batch without it
    """

    number: int
    conversation: Conversation
    stats: Stats
    events: Feeding[None]
    reports: bool
    client: Hashable
    answer: Answer | None
    share: Share = field(default_factory=Share)
    is_ready: bool = False
    is_recalling: bool = False
    feed: WaitingFeed | None = None
    ended: Ended | None = None
    paused_since: float = 0.0
    comes_back_soon: bool = True

    @property
    def is_paused(self) -> bool:
        """True if its client has a piece, and has not asked for the next one."""
        return self.answer is None and self.feed is None and not self.is_ready and self.ended is None
