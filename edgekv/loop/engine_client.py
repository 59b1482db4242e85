"""An engine at the other end of a channel, as runtimes use it, whichever process its loop is in."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from edgekv.cells.loaded_model import LoadedModel
from edgekv.cells.opened import Opened
from edgekv.generation.request import GenerationRequest, Logging
from edgekv.planning.ledger import LedgerEntry
from edgekv.planning.plan import Plan

from .conversation_client import Conversation
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


class Engine(Opened):
    """A loaded model and its cells, at the other end of a channel.

    mark: bytes that its snapshots carry
    """

    def __init__(self, channel: Channel, plan: Plan, mark: bytes) -> None:
        self.channel = channel
        self.plan = plan
        self.mark = mark
        self._planning = threading.Lock()  # held while the plan of now is asked for
        self._numbers = itertools.count(1)
        self._open: weakref.WeakSet[Conversation] = weakref.WeakSet()
        self.opened()

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

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> Conversation:
        """Begin a conversation. Raises BudgetError if the system message leaves no cells.

        logging: keep a log; raises SessionFileError if the disk does not take it, and ConfigError for too small a cap
        """
        number = self.new_number()
        self.channel.ask(NewConversation(number, system, logging))
        return Conversation(self, number, system)

    def load_conversation(
        self, path: Path, instead_of: Conversation | None = None, *, keeps_log: bool = True, keep: bool = False
    ) -> Conversation:
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
        return Conversation(self, number, cast("str | None", self.channel.look(number, "system")))

    @property
    def keeps_sessions(self) -> bool:
        """True if a kept session need not be read again when it is loaded."""
        return cast(bool, self._call("keeps_sessions"))

    def keep_beginnings(self, folder: Path) -> None:
        """Keep shared beginnings in a folder, by an absolute path, beyond this engine; go on with those that lie there.

        Call it before the first conversation. Raises OSError if the folder cannot be made.
        """
        self._call("keep_beginnings", folder)

    @property
    def n_kept_bytes(self) -> int:
        """Bytes that were written to keep conversations and beginnings, without rows."""
        return cast(int, self._call("n_kept_bytes"))

    def fork(self, conversation: Conversation) -> Conversation:
        """Begin a conversation with all that another one has read and said. It is swapped out until its first use.

        Raises SwapError, and SessionFileError if the disk does not take another log; no reply may be under way.
        """
        number = self.new_number()
        self.channel.ask(ForkConversation(number, conversation.number))
        return Conversation(self, number, conversation.system)

    def tokenize(self, text: str, begin: bool, special: bool) -> list[int]:
        """Return the tokens of a text.

        begin: with the tokens that the model expects before a text
        special: read names of control tokens as these tokens
        """
        return cast(list[int], self._call("tokenize", text, begin, special))

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Raises InputError for ids that the vocabulary lacks."""
        return cast(str, self._call("text_of", tokens))

    def pieces_of(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token. Raises InputError for ids that the vocabulary lacks."""
        return cast(list[bytes], self._call("pieces_of", tokens))

    def count(self, request: GenerationRequest) -> int:
        """Return the number of tokens of a history. Raises InputError."""
        return cast(int, self._call("count", request))

    def prompt_text(self, request: GenerationRequest) -> str:
        """Return the text that a history of messages is read as. Raises InputError."""
        return cast(str, self._call("prompt_text", request))

    def store_history(self, request: GenerationRequest, folder: str | None) -> tuple[int, int]:
        """Render and tokenise a history into a file in a folder.

        Returns its number, for `GenerationRequest.stored`, and the tokens before its first content.
        Raises InputError, and SessionFileError if the folder (None = that of TMPDIR) takes no file.
        """
        return cast(tuple[int, int], self._call("store_history", request, folder))

    def forget_history(self, number: int) -> None:
        """Remove the file of a stored history."""
        self._call("forget_history", number)

    def reply_opening(self) -> str:
        """Return the text that the chat template puts before a reply; "" if the model has no usable template."""
        return cast(str, self._call("reply_opening"))

    def set_memory(self, ceiling_bytes: int) -> Plan:
        """Go under another ceiling; returns the plan. Raises CeilingError, ConfigError and SwapError.

        After an error the ceiling is as before.
        """
        return self._move(MoveCeiling(ceiling_bytes))

    def _move(self, message: MoveCeiling | FollowGrammars) -> Plan:
        moved = cast(Plan, self.channel.ask(message))
        with self._planning:
            self.plan = cast(Plan, self._call("plan"))  # another thread may have moved it since
        return moved

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return the entries of the ledger, as of the end of the step under way."""
        return cast("tuple[LedgerEntry, ...]", self._call("entries"))

    def follow_grammars(self) -> None:
        """Have replies follow grammars from now on. Raises what `set_memory` does if there is no room for that."""
        if not self.plan.parts.grammars:
            self._move(FollowGrammars())

    def note(self, conversation: Conversation) -> None:
        """Note a conversation, which is cancelled if the engine is closed."""
        self._open.add(conversation)

    def close(self) -> None:
        """End all calls under way, and free everything."""
        self.closed = True
        for conversation in list(self._open):
            conversation.cancelled.set()
        self.channel.close()

    def drop(self) -> None:
        """Free everything, in a finalizer."""
        self.closed = True
        self.channel.drop()

    def new_number(self) -> int:
        """Return a number for a conversation or a reply."""
        return next(self._numbers)

    def new_client(self) -> int:
        """Return a number for a client of one reply, which no thread has."""
        return OF_ONE_REPLY | self.new_number()

    def _call(self, name: str, *arguments: Any) -> Any:
        return self.channel.ask(Call(None, name, arguments))
