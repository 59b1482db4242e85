"""A loop without a thread: whoever waits for an answer makes it step, and between two steps anything may happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgekv.errors import SessionError
from edgekv.loop.loop import Loop
from edgekv.loop.loop_messages import CLOSED, Raised, Stop
from edgekv.loop.open_reply import Post

TICK_S = 1e-6


class Answer:
    """A box that the answer to a message comes to. Who waits for it makes the loop step."""

    def __init__(self, channel: SteppedLoop) -> None:
        self._channel = channel
        self.answers: list[object] = []

    def get(self) -> Any:
        self._channel.work_until(self.answers)
        (answer,) = self.answers
        if isinstance(answer, Raised):
            raise answer.error
        return answer


class SteppedLoop:
    """A loop that steps when a client waits. clock: moves by what the loop waits

    between: called between two steps; client: who posts messages
    note_feed: called with the cache of each feed that was decoded
    """

    worker_pid, alive = None, True

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.now = 0.0
        loop._slots._clock = loop._clock = lambda: self.now
        self.between: Callable[[], None] = lambda: None
        self.note_feed: Callable[[object], None] = lambda cache: None
        self.client = 0
        self._decode = self.loaded.decoder.decode
        self.loaded.decoder.decode = self._decode_and_note

    @property
    def loaded(self) -> Any:
        return self.loop.engine.loaded

    def post(self, message: object, client: int | None = None) -> Answer:
        answer = Answer(self)
        if self.loop.engine.closed:
            answer.answers.append(None if isinstance(message, Stop) else Raised(SessionError(CLOSED)))
        else:
            self.loop.take(Post(message, answer.answers.append, self.client if client is None else client))
        return answer

    request = post

    def ask(self, message: object) -> Any:
        return self.post(message).get()

    def look(self, number: int, name: str) -> Any:
        return getattr(self.loop.conversation(number), name)

    def work_until(self, answers: list[object]) -> None:
        while not answers:
            self.between()
            if answers:
                return
            wait = self.loop.step()
            assert wait is not None or answers, "the loop waits for a message, and its client for an answer"
            self.now += (wait or 0.0) + TICK_S

    def close(self) -> None:
        self.between = lambda: None
        self.ask(Stop())

    drop = close

    def _decode_and_note(self, feeds: list[Any]) -> list[int]:
        rows = self._decode(feeds)
        for feed in feeds:
            self.note_feed(feed.cache)
        return rows
