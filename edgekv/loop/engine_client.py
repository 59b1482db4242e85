"""An engine at the other end of a channel, as runtimes use it, whichever process its loop is in."""

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

from edgekv.cells.loaded_model import LoadedModel
from edgekv.generation.request import Logging
from edgekv.planning.plan import Plan

from .conversation_client import ConversationClient
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
    """

    closed = True  # until it was made

    def __init__(self, channel: Channel, plan: Plan, mark: bytes) -> None:
        self.channel = channel
        self.plan = plan
        self.mark = mark
        self._planning = threading.Lock()  # held while the plan of now is asked for
        self._numbers = itertools.count(1)
        self._open: weakref.WeakSet[ConversationClient] = weakref.WeakSet()
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

    @property
    def loaded(self) -> LoadedModel | None:
        """The model; None = it is in a worker."""
        return self.channel.loaded

    @property
    def worker_pid(self) -> int | None:
        """The process id of its worker; None = it runs in this process."""
        return self.channel.worker_pid

    @property
    def alive(self) -> bool:
        """False once its worker has ended."""
        return self.channel.alive

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> ConversationClient:
        """Begin a conversation. Raises BudgetError if the system message leaves no cells.

        logging: keep a log; raises SessionFileError if the disk does not take it, and ConfigError for too small a cap
        """
        number = self.new_number()
        self.channel.ask(NewConversation(number, system, logging))
        return ConversationClient(self, number, system)

    def load_conversation(
        self, path: Path, instead_of: ConversationClient | None = None, *, keeps_log: bool = True, keep: bool = False
    ) -> ConversationClient:
        """Load a saved or kept conversation, by an absolute path, into the cells.

        instead_of: a conversation that gives up its cells, and is not swapped out
        keeps_log: keep the log of the file, if it has one
        keep: append to the folder of a kept session from now on

        Raises SessionFileError, BudgetError or CeilingError if the file does not fit this engine, and SwapError; the
        cells are then as before.
        """
        number = self.new_number()
        replaced = None if instead_of is None else instead_of.number
        self.channel.ask(LoadConversation(number, path, replaced, keeps_log, keep))
        return ConversationClient(self, number, cast("str | None", self.channel.look(number, "system")))

    def fork(self, conversation: ConversationClient) -> ConversationClient:
        """Begin a conversation with all that another one has read and said. It is swapped out until its first use.

        Raises SwapError, and SessionFileError if the disk does not take another log; no reply may be under way.
        """
        number = self.new_number()
        self.channel.ask(ForkConversation(number, conversation.number))
        return ConversationClient(self, number, conversation.system)

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

    def note(self, conversation: ConversationClient) -> None:
        """Note a conversation, which is cancelled if the engine is closed."""
        self._open.add(conversation)

    def close(self) -> None:
        """End all calls under way, and free everything."""
        self.closed = True
        for conversation in list(self._open):
            conversation.cancelled.set()
        self.channel.close()

    def new_number(self) -> int:
        """Return a number for a conversation or a reply."""
        return next(self._numbers)

    def new_client(self) -> int:
        """Return a number for a client of one reply, which no thread has."""
        return OF_ONE_REPLY | self.new_number()
