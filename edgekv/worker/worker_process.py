"""A worker process, seen from the host: started afresh, asked, watched, and ended."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from edgekv.addresses import Server
from edgekv.errors import ConfigError, SessionError, WorkerError
from edgekv.loop.loop_channel import Mailbox
from edgekv.loop.loop_messages import CLOSED, Call, Raised
from edgekv.memory.process import is_stopped

from . import frozen
from .channel import Channel
from .pipe_messages import BEAT_S, NUMBERS, decode, encode

if sys.platform == "win32":
    import msvcrt

SILENCE_S = 5.0  # seconds without a sign of life until a worker counts as hung
START_S = 30.0  # seconds until the first sign of life: Python and numpy may come from a slow disk
END_S = 1.0  # seconds for a worker to end by itself

CODE = "import sys; sys.path[:] = {path!r}; from edgekv.worker.worker_main import main; main{handles!r}"


class Worker:
    """A process with a loop. Any thread may post messages to it. Close it.

    loaded: the model is not in this process

    servers: servers that hold layers of its model; the worker ends if one of them goes
    Raises WorkerError if it cannot be started, and ConfigError if there is no Python to start.
    """

    loaded = None

    def __init__(self, servers: Sequence[Server] = ()) -> None:
        self._servers = servers
        self._ended_because = ""  # the watcher's reason for ending the worker
        self.closed = False
        self._gone: WorkerError | None = None  # why no more answers come
        self._numbers = itertools.count(1)
        self._boxes: dict[int, Mailbox] = {}  # boxes that take the answers, by the numbers of the messages
        self._outgoing: deque[tuple[bytes, bytes]] = deque()
        self._sending = threading.Lock()
        requests, ours = os.pipe()
        theirs, answers = os.pipe()
        self._channel = Channel(theirs, ours)
        watched, pulse = Pipe()
        try:
            self._process = _start(requests, answers, pulse.fileno())
        except BaseException as error:
            self._channel.close()
            watched.close()
            if isinstance(error, OSError):
                raise WorkerError(f"{sys.executable!r} does not start as a worker process: {error}") from error
            raise
        finally:
            os.close(requests)
            os.close(answers)
            pulse.close()
        self._watcher = threading.Thread(target=self._watch, args=(watched,), name="edgekv-worker", daemon=True)
        self._watcher.start()
        self._reader = threading.Thread(target=self._read, name="edgekv-answers", daemon=True)
        self._reader.start()

    @property
    def worker_pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def post(self, message: object, client: int | None = None) -> Mailbox:
        """Post a message, without waiting; returns the place of its answer. Finalizers may call this, too.

        client: who waits for the answer; None = this thread
        The answer is a WorkerError if the worker died or hangs.
        """
        box, number = Mailbox(), next(self._numbers)
        if self.closed:
            box.put(Raised(SessionError(CLOSED)))
            return box
        packed = encode(message)
        self._boxes[number] = box
        self._outgoing.append((NUMBERS.pack(number, threading.get_ident() if client is None else client), packed))
        self._send()
        if self._gone is not None:
            self._refuse(self._gone)
        return box

    request = post

    def ask(self, message: object) -> Any:
        """Return the answer to a message. Raises the worker's errors, and WorkerError if it died or hangs."""
        return self.post(message).get()

    def look(self, number: int, name: str) -> Any:
        """Return a value of a conversation that needs no cells."""
        return self.ask(Call(number, name))

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self.closed = True
        if threading.current_thread() in (self._watcher, self._reader):  # this is a finalizer
            self._process.kill()
            return
        if self._sending.acquire(blocking=False):  # otherwise a message is on its way, and finds the process gone
            self._channel.end_writing()
            self._sending.release()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        self._process.kill()
        self._process.wait()
        self._watcher.join()
        self._reader.join()

    drop = close

    def _send(self) -> None:
        """Send the messages that were posted. One thread at a time sends the messages of all."""
        while self._outgoing and self._sending.acquire(blocking=False):
            try:
                while self._outgoing:
                    self._channel.send(*self._outgoing[0])
                    self._outgoing.popleft()
            except OSError:  # the reader finds the process gone
                self._outgoing.clear()
            except BaseException:
                self._process.kill()  # half a message is no use to it, and nothing that follows either
                raise
            finally:
                self._sending.release()

    def _read(self) -> None:
        """Give each answer to who waits for it, until the worker has ended."""
        with suppress(EOFError, OSError):
            while True:
                data = self._channel.receive()
                number, _ = NUMBERS.unpack_from(data)
                self._boxes.pop(number).put(decode(data[NUMBERS.size :]))
        self._gone = self._death()
        self._refuse(self._gone)
        with self._sending:
            self._channel.close()

    def _refuse(self, error: WorkerError) -> None:
        """Answer all messages to a worker that has ended."""
        for number in list(self._boxes):
            if (box := self._boxes.pop(number, None)) is not None:
                box.put(Raised(error))

    def _watch(self, pulse: Connection) -> None:
        """Watch the worker until it ends, and kill it if it gives no sign of life. Waiting calls find the pipe closed.

        A silent worker may only be slow, so it is given time; a stopped worker is not. Silence is counted in waits, not
        in seconds, so a machine or a host that sleeps does not count as a worker's silence.
        """
        patience = START_S
        missed = 0
        with pulse, suppress(EOFError, OSError):
            while not self._ended_because:
                if pulse.poll(BEAT_S):
                    pulse.recv_bytes()
                    patience, missed = SILENCE_S, 0
                    continue
                missed += 1
                if is_stopped(self._process.pid):
                    self._ended_because = "was stopped by a signal"
                elif missed * BEAT_S >= patience:
                    self._ended_because = f"gave no sign of life for {patience:g} s"
            self._process.kill()
            self._process.wait()

    def _death(self) -> WorkerError:
        """Return the error that says why the worker ended."""
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if self.closed:
            how = "was closed"
        elif self._ended_because:
            how = f"{self._ended_because}, and was ended"
        elif status < 0:
            how = f"was ended by signal {-status} ({signal.strsignal(-status)})"
            if sys.platform != "win32" and status == -signal.SIGKILL:
                how += ", as the system does when memory runs out"
        else:
            how = f"ended with status {status}"
        return WorkerError(
            f"the worker process {self.worker_pid} {how}{self._because(status)}; close this runtime and open another"
        )

    def _because(self, status: int) -> str:
        """Return the part that its servers had in its end: ggml's client aborts if a server goes."""
        if not self._servers or self.closed:
            return ""
        from edgekv.devices.server import lost_servers  # few workers have servers

        lost = lost_servers(self._servers)
        if lost:
            return f", and of its RPC servers {'; '.join(lost.values())}"
        named = ", ".join(map(str, self._servers))
        return f", as when an RPC server breaks off; now there is an answer of {named}" * (status == -signal.SIGABRT)


def _start(requests: int, answers: int, pulse: int) -> subprocess.Popen[bytes]:
    """Start a program that serves these pipes, in a process group of its own, so that Ctrl-C does not reach it."""
    handles = (requests, answers, pulse)
    if sys.platform == "win32":
        handles = (msvcrt.get_osfhandle(requests), msvcrt.get_osfhandle(answers), pulse)
    command = _command(handles)
    if sys.platform == "win32":
        for handle in handles:
            os.set_handle_inheritable(handle, True)
        startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": list(handles)})
        group = subprocess.CREATE_NEW_PROCESS_GROUP
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, startupinfo=startup, creationflags=group)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=handles, start_new_session=True)


def _command(handles: tuple[int, int, int]) -> list[str]:
    """Return the command that starts a worker: an interpreter, or this program if it is frozen."""
    if getattr(sys, "frozen", False):
        if not frozen.is_prepared():
            raise ConfigError(
                "isolated=True starts this frozen program once more as a worker process, which it is not prepared for; "
                "package it with edgekv's PyInstaller hook (docs/desktop.md), or leave isolated out"
            )
        return [sys.executable, frozen.ARGUMENT, *map(str, handles)]
    if not sys.executable:
        raise ConfigError("isolated=True starts a Python interpreter, and this program has none; leave it out")
    return [sys.executable, "-c", CODE.format(path=sys.path, handles=handles)]
