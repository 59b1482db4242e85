"""The worker process: answers the host's messages with a `LocalEngine`, and ends with the host."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from contextlib import suppress
from typing import Any, NamedTuple

from edgekv.errors import EdgeKVError, SessionError
from edgekv.generation.request import Progress
from edgekv.memory import process
from edgekv.planning.alternatives import make_survey
from edgekv.planning.plan import Plan
from edgekv.planning.planner import make_plan
from edgekv.sessions.conversation import LocalConversation
from edgekv.sessions.local_engine import LocalEngine

from .channel import Channel
from .pipe_messages import (
    BEAT_S,
    Abort,
    Call,
    Close,
    Ended,
    Estimate,
    Load,
    LoadConversation,
    NewConversation,
    Next,
    Raised,
    Reply,
    decode,
    encode,
    portable,
    unpack,
)

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection as Connection
else:
    from multiprocessing.connection import Connection


def main(requests: int, answers: int, pulse: int) -> None:
    """Serve the host through these handles of pipes, until it is gone."""
    process.use_one_heap()
    gc.freeze()  # modules stay, so no plan or reply has to look for garbage among them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which may only cancel a reply
    threading.Thread(target=_beat, args=(_connection(pulse),), daemon=True).start()
    Server(_channel(requests, answers)).serve()


class Server:
    """Answers messages, one after another, with one engine and its conversations."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: LocalEngine | None = None
        self._conversations: dict[int, LocalConversation] = {}
        self._replies: dict[int, OpenReply] = {}

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
            if isinstance(message, NewConversation):
                self._conversations[message.number] = self._loaded().new_conversation(message.system, message.logging)
                return None
            if isinstance(message, LoadConversation):
                replaced = None if message.instead_of is None else self._conversations[message.instead_of]
                self._conversations[message.number] = self._loaded().load_conversation(
                    message.path, replaced, keeps_log=message.keeps_log
                )
                return None
            if isinstance(message, Close):
                self._close(message)
                return None
            if isinstance(message, Call):
                number = message.conversation
                found = getattr(self._loaded() if number is None else self._conversations[number], message.name)
                return found(*message.arguments) if callable(found) else found
            if isinstance(message, Reply):
                return self._reply(message)
            return self._go_on(message)
        except Exception as error:
            return Raised(_reported(error))

    def _load(self, message: Load) -> Plan:
        self._engine = LocalEngine(message.path, unpack(message.request), message.mark)
        return self._engine.plan

    def _loaded(self) -> LocalEngine:
        if self._engine is None:
            raise SessionError("no model is loaded")
        return self._engine

    def _close(self, message: Close) -> None:
        conversation = self._conversations.pop(message.number, None)
        if conversation is not None:  # otherwise this was asked before, and the host was interrupted meanwhile
            conversation.close()
        if self._engine is not None:
            self._engine.reap()

    def _reply(self, message: Reply) -> str | Ended:
        """Begin a reply."""
        conversation = self._conversations[message.conversation]
        conversation.cancelled.clear()
        if message.folder is not None:
            os.chdir(message.folder)
        pieces = conversation.reply(message.request, functools.partial(self._show, message.number, conversation))
        self._replies[message.number] = OpenReply(conversation, pieces)
        return self._next(message.number)

    def _go_on(self, message: Any) -> str | Ended:
        """Return the next piece of an open reply, for Next or Abort."""
        reply = self._replies.get(message.number)
        if reply is None:
            return Ended(None)
        if isinstance(message, Abort):
            del self._replies[message.number]
            reply.pieces.close()
            return Ended(reply.conversation.stats)
        if message.cancelled:
            reply.conversation.cancelled.set()
        return self._next(message.number)

    def _next(self, number: int) -> str | Ended:
        """Return the next piece of a reply, or its end."""
        reply, failure = self._replies[number], None
        try:
            with suppress(Aborted, StopIteration):
                return next(reply.pieces)
        except Exception as error:
            failure = _reported(error)
        self._replies.pop(number, None)
        return Ended(reply.conversation.stats, failure)

    def _show(self, number: int, conversation: LocalConversation, progress: Progress) -> None:
        """Send the host the progress of reading, and wait for Next. Raises Aborted on Abort."""
        answer: object = progress
        while True:
            self._send(answer)
            message = self._receive()
            if isinstance(message, Next) and message.number == number:
                if message.cancelled:
                    conversation.cancelled.set()
                return
            if isinstance(message, Abort) and message.number == number:
                raise Aborted
            answer = self._answer(message)


class OpenReply(NamedTuple):
    """A reply that the host has not finished."""

    conversation: LocalConversation
    pieces: Generator[str, None, None]


class Aborted(Exception):  # noqa: N818  (nothing is wrong)
    """The host aborted a reply."""


def _reported(error: Exception) -> Exception:
    """Return the error for the host to raise. An unexpected error also prints a traceback on standard error."""
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
        os.set_handle_inheritable(handle, False)
    else:
        os.set_inheritable(handle, False)
    return Connection(handle)


def _beat(pulse: Connection) -> None:
    """Give the host signs of life, and end this process at once when the host is gone.

    Native calls release the interpreter, so this thread runs however long they take.
    """
    with suppress(OSError):
        pulse.send_bytes(b".")
        while not pulse.poll(BEAT_S):  # the host never sends, so only its end can be read
            pulse.send_bytes(b".")
    os._exit(1)
