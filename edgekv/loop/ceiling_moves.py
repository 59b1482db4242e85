"""Moves of the ceiling that clients wait for. Each goes on between two steps, and ends when the memory is back."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator

from edgekv.conversations.local_engine import LocalEngine
from edgekv.errors import SessionError
from edgekv.planning.plan import Plan

from .loop_messages import CLOSED, FollowGrammars, MoveCeiling, Raised
from .open_reply import Post


class CeilingMoves:
    """The moves of an engine's ceiling, one after the other, in order of arrival.

    waiting: clients that wait for a move
    """

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self.waiting: deque[tuple[Post, Generator[None, None, Plan]]] = deque()

    def add(self, post: Post, message: MoveCeiling | FollowGrammars) -> None:
        """Take a move, which begins with the next `go_on` if it is the only one."""
        if isinstance(message, MoveCeiling):
            move = self._engine.moving(message.ceiling_bytes)
        else:
            move = self._engine.following_grammars()
        self.waiting.append((post, move))

    def go_on(self) -> Iterator[Post]:
        """Go on until a move waits for a reply at work, or all have ended; yields those that were answered."""
        while self.waiting:
            post, move = self.waiting[0]
            try:
                next(move)
                return
            except StopIteration as end:
                post.answer(end.value)
            except BaseException as error:  # any error is the client's, and the loop goes on
                post.answer(Raised(error))
            self.waiting.popleft()
            yield post

    def refuse(self) -> None:
        """Answer all clients that the loop ends."""
        while self.waiting:
            post, move = self.waiting.popleft()
            move.close()
            post.answer(Raised(SessionError(CLOSED)))
