"""The worker process: answers the host's messages with a loop of its own, and ends with the host."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any

from edgekv.conversations.local_engine import LocalEngine
from edgekv.errors import EdgeKVError, SessionError
from edgekv.loop.loop import Loop
from edgekv.loop.loop_messages import Ended, Raised, Reply
from edgekv.loop.open_reply import Post
from edgekv.memory import process
from edgekv.memory.code_pages import lock_code
from edgekv.planning.alternatives import make_survey
from edgekv.planning.plan import Plan
from edgekv.planning.planner import make_plan

from .channel import Channel
from .pipe_messages import BEAT_S, NUMBERS, Estimate, Load, decode, encode, portable, unpack

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection as Connection
else:
    from multiprocessing.connection import Connection


def main(requests: int, answers: int, pulse: int) -> None:
    """Serve the host through these handles of pipes, until it is gone."""
    process.use_one_heap()
    gc.freeze()  # modules stay, so no plan or reply has to look for garbage among them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which may only cancel a reply
    if sys.platform != "win32":  # a service manager sends these to all processes, and a server follows them
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    threading.Thread(target=_beat, args=(_connection(pulse),), daemon=True).start()
    Server(_channel(requests, answers)).serve()


class Server:
    """Runs a loop over the messages of a host."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop: Loop | None = None

    def serve(self) -> None:
        """Take messages and work until the host is gone."""
        wait: float | None = None
        while True:
            if self._channel.wait(wait):
                self._take(*self._receive())
                wait = 0.0  # there may be more
            elif self._loop is not None:
                wait = self._loop.step()
            else:
                wait = None

    def _receive(self) -> tuple[int, int, Any]:
        """Return the next message, its number and its client."""
        try:
            data = self._channel.receive()
        except (EOFError, OSError):
            raise SystemExit from None
        return *NUMBERS.unpack_from(data), decode(data[NUMBERS.size :])

    def _take(self, number: int, client: int, message: Any) -> None:
        post = Post(message, functools.partial(self._answer, number), client)
        try:
            if isinstance(message, Load):
                post.answer(self._load(message))
            elif isinstance(message, Estimate):
                estimate = make_survey if message.around else make_plan
                post.answer(estimate(message.path, unpack(message.request)))
            elif self._loop is None:
                raise SessionError("no model is loaded")
            else:
                if isinstance(message, Reply) and message.folder is not None:
                    os.chdir(message.folder)
                self._loop.take(post)
        except Exception as error:
            post.answer(Raised(error))

    def _load(self, message: Load) -> Plan:
        engine = LocalEngine(message.path, unpack(message.request), message.mark)
        self._loop = Loop(engine)
        if engine.loaded.options.yields:
            lock_code()
        return engine.plan

    def _answer(self, number: int, answer: object) -> None:
        if isinstance(answer, Raised):
            answer = Raised(_reported(answer.error))
        elif isinstance(answer, Ended) and answer.error is not None:
            answer = Ended(answer.stats, _reported(answer.error))
        try:
            self._channel.send(NUMBERS.pack(number, 0), encode(answer))
        except OSError:
            raise SystemExit from None


def _reported(error: BaseException) -> BaseException:
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
