"""The requests of one body, answered one after another: each is queued when the one before has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from edgekv.api.reply_request import Event, ReplyRequest

from .admission import MemoryBudget
from .running_request import Running


class Series:
    """The events of several requests, each up to its `Ended`. Iterate it to its end and close it, as a `Running`.

    What the requests hold in memory is counted until it is closed. Raises what `submit` raises for the first of them,
    and ApiError if there is no room.
    """

    def __init__(
        self,
        first: ReplyRequest,
        others: Iterable[ReplyRequest],
        submit: Callable[[ReplyRequest], Running],
        memory: MemoryBudget,
        n_bytes: int,
    ) -> None:
        """n_bytes: memory of what the others are made of"""
        self._others = iter(others)
        self._submit = submit
        with ExitStack() as stack:
            stack.enter_context(memory.reserved(n_bytes))
            self._begun = [submit(first)]
            self._held = stack.pop_all()

    def __aiter__(self) -> Series:
        return self

    async def __anext__(self) -> Event:
        while True:
            try:
                return await self._begun[-1].__anext__()
            except StopAsyncIteration:
                following = next(self._others, None)
                if following is None:
                    raise
                self._begun.append(self._submit(following))

    async def aclose(self) -> None:
        """Cancel the request that is under way, and free what all of them hold."""
        for running in self._begun:
            await running.aclose()
        self._held.close()
