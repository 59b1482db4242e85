"""The worker process: answers the host's messages with a `LocalEngine`, and ends when the host does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

from edgekv.engine.conversation import LocalConversation
from edgekv.engine.local import LocalEngine
from edgekv.engine.reply import Progress
from edgekv.errors import EdgeKVError, SessionError
from edgekv.planning.estimate import Plan
from edgekv.planning.planner import make_plan
from edgekv.planning.surveys import make_survey

from .channel import Channel
from .messages import (
    BEAT_S,
    Converse,
    Drop,
    Ended,
    Estimate,
    Load,
    Look,
    Proceed,
    Raised,
    Reply,
    decode,
    encode,
    portable,
    unpack,
)


def main(requests: int, answers: int, pulse: int) -> None:
    """Serve until the host goes, through these handles of pipes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which may want to cancel a reply only
    threading.Thread(target=_beat, args=(_connection(pulse),), daemon=True).start()
    Server(_channel(requests, answers)).serve()


class Server:
    """Answers messages, one after another, with one engine and its newest conversation."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: LocalEngine | None = None
        self._conversation: LocalConversation | None = None
        self._replying: int | None = None

    def serve(self) -> None:
        """Answer until the host is gone."""
        while True:
            self._send(self._answer(self._receive()))

    def _receive(self) -> Any:
        try:
            return decode(self._channel.receive())
        except (EOFError, OSError):
            raise SystemExit from None

    def _send(self, answer: object) -> None:
        try:
            self._channel.send(encode(answer))
        except OSError:
            raise SystemExit from None

    def _answer(self, message: object) -> object:
        try:
            if isinstance(message, Load):
                return self._load(message)
            if isinstance(message, Estimate):
                estimate = make_survey if message.around else make_plan
                return estimate(message.path, unpack(message.request))
            if isinstance(message, Converse):
                self._converse(message)
                return None
            if isinstance(message, Look):
                found = getattr(self._current(), message.name)
                return found(*message.arguments) if callable(found) else found
            if isinstance(message, Reply):
                return self._reply(message)
            return Ended(None)  # Proceed or Drop, of a reply that is over
        except Exception as error:
            return Raised(_reported(error))

    def _load(self, message: Load) -> Plan:
        self._engine = LocalEngine(message.path, unpack(message.request))
        return self._engine.plan

    def _converse(self, message: Converse) -> None:
        if self._engine is None:
            raise SessionError("no model is loaded")
        self._conversation = None
        self._conversation = self._engine.converse(message.system)

    def _current(self) -> LocalConversation:
        if self._conversation is None:
            raise SessionError("no conversation has begun")
        return self._conversation

    def _reply(self, message: Reply) -> Ended:
        """Give a reply part by part. The answer to the host's last message about it says that it ended."""
        conversation, failure = self._current(), None
        if message.folder is not None:
            os.chdir(message.folder)
        self._replying = message.number
        try:
            with suppress(Dropped), closing(conversation.reply(message.wanted, self._show)) as pieces:
                for piece in pieces:
                    self._show(piece)
        except Exception as error:
            failure = _reported(error)
        finally:
            self._replying = None
        return Ended(conversation.stats, failure)

    def _show(self, part: str | Progress) -> None:
        """Give the host a part of the reply, and wait until it wants the next. Raises Dropped if it wants no more."""
        answer: object = part
        while True:
            self._send(answer)
            message = self._receive()
            if isinstance(message, Proceed) and message.number == self._replying:
                if message.cancelled:
                    self._current().cancelled.set()
                return
            if isinstance(message, Drop) and message.number == self._replying:
                raise Dropped
            answer = self._answer(message)


class Dropped(Exception):  # noqa: N818  (nothing is wrong)
    """The host wants no more of a reply."""


def _reported(error: Exception) -> Exception:
    """The error for the host to raise. One that nobody raised on purpose also prints a traceback on standard error."""
    if not isinstance(error, EdgeKVError):
        traceback.print_exception(type(error), error, error.__traceback__)
    return portable(error)


def _channel(reading: int, writing: int) -> Channel:
    if sys.platform == "win32":
        import msvcrt

        reading = msvcrt.open_osfhandle(reading, os.O_RDONLY | os.O_BINARY)
        writing = msvcrt.open_osfhandle(writing, os.O_WRONLY | os.O_BINARY)
    for descriptor in (reading, writing):
        os.set_inheritable(descriptor, False)
    return Channel(reading, writing)


def _connection(handle: int) -> Connection:
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        os.set_handle_inheritable(handle, False)
        return PipeConnection(handle)
    os.set_inheritable(handle, False)
    return Connection(handle)


def _beat(pulse: Connection) -> None:
    """Give the host signs of life, and end this process at once when the host is gone.

    Native calls release the interpreter, so this thread runs however long they take.
    """
    with suppress(OSError):
        pulse.send_bytes(b".")
        while not pulse.poll(BEAT_S):  # the host never sends: what can be read is its end
            pulse.send_bytes(b".")
    os._exit(1)
