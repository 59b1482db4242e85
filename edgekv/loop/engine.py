"""An engine, as runtimes and sessions use it, whichever process the loop is in."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from edgekv.generation.request import Logging
from edgekv.planning.plan import Plan

from .loop_channel import Channel
from .loop_messages import (
    OF_ONE_REPLY,
    Call,
    FollowGrammars,
    ForkConversation,
    LoadConversation,
    MoveCeiling,
    NewConversation,
)


class Engine:
    """A loaded model and its cells, at the other end of a channel. Close it.

    A runtime and each of its sessions hold the engine, so it lives as long as one of them. If it is dropped without
    being closed, it frees everything, with a ResourceWarning. Garbage is collected in any thread and in the midst of
    any call. So that may wait for no lock of another object.

    mark: bytes that its snapshots carry
    closed: everything was freed
    cancels: events that cancel the replies of its conversations; they are set if it is closed
    """

    closed = True  # until it was made

    def __init__(self, channel: Channel, plan: Plan, mark: bytes) -> None:
        self.channel = channel
        self.plan = plan
        self.mark = mark
        self._planning = threading.Lock()  # held while the plan of now is asked for
        self._numbers = itertools.count(1)
        self.cancels: weakref.WeakSet[threading.Event] = weakref.WeakSet()
        self._opened_by = os.getpid()  # a fork frees nothing
        self.closed = False

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.closed or is_finalizing() or self._opened_by != os.getpid():  # at exit the system frees it
            return
        self.closed = True
        try:
            warnings.warn(
                f"a runtime of {self.plan.model.name} was dropped without being closed, and is freed only now; call "
                "its close(), or open it in `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            self.channel.drop()

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> int:
        """Begin a conversation; returns its number. Arguments and errors as of `LocalEngine.new_conversation`."""
        number = self.new_number()
        self.channel.ask(NewConversation(number, system, logging))
        return number

    def load_conversation(
        self, path: Path, instead_of: int | None = None, *, keeps_log: bool = True, keep: bool = False
    ) -> tuple[int, str | None]:
        """Load a saved or kept conversation; returns its number and its system message.

        Arguments, here with a number, and errors as of `LocalEngine.load_conversation`.
        """
        number = self.new_number()
        self.channel.ask(LoadConversation(number, path, instead_of, keeps_log, keep))
        return number, cast("str | None", self.channel.look(number, "system"))

    def fork(self, origin: int) -> int:
        """Begin a conversation as `LocalEngine.fork`; returns its number. No reply of the origin may be under way."""
        number = self.new_number()
        self.channel.ask(ForkConversation(number, origin))
        return number

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the result of a method of the loop's engine, or a property. Raises its errors."""
        return self.channel.ask(Call(None, name, arguments))

    def set_memory(self, ceiling_bytes: int) -> Plan:
        """Go under another ceiling; returns the plan. Raises CeilingError, ConfigError and SwapError.

        After an error the ceiling is as before.
        """
        return self._move(MoveCeiling(ceiling_bytes))

    def _move(self, message: MoveCeiling | FollowGrammars) -> Plan:
        moved = cast(Plan, self.channel.ask(message))
        with self._planning:
            self.plan = cast(Plan, self.call("plan"))  # another thread may have moved it since
        return moved

    def follow_grammars(self) -> None:
        """Have replies follow grammars from now on. Raises what `set_memory` does if there is no room for that."""
        if not self.plan.parts.grammars:
            self._move(FollowGrammars())

    def close(self) -> None:
        """End all calls under way, and free everything."""
        self.closed = True
        for cancelled in list(self.cancels):
            cancelled.set()
        self.channel.close()

    def new_number(self) -> int:
        """Return a number for a conversation or a reply."""
        return next(self._numbers)

    def new_client(self) -> int:
        """Return a number for a client of one reply, which no thread has."""
        return OF_ONE_REPLY | self.new_number()
