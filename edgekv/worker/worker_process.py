"""A worker process, seen from the host: started afresh, asked, watched, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from edgekv.addresses import Server
from edgekv.errors import ConfigError, SessionError, WorkerError
from edgekv.memory.process import is_stopped

from . import frozen
from .channel import Channel
from .pipe_messages import BEAT_S, Raised, decode, encode

if sys.platform == "win32":
    import msvcrt

SILENCE_S = 5.0  # seconds without a sign of life until a worker counts as hung
START_S = 30.0  # seconds until the first sign of life: Python and numpy may come from a slow disk
END_S = 1.0  # seconds for a worker to end by itself

CODE = "import sys; sys.path[:] = {path!r}; from edgekv.worker.worker_main import main; main{handles!r}"


class Worker:
    """A process that answers messages, one at a time, from any thread. Close it.

    servers: servers that hold layers of its model; the worker ends if one of them goes
    Raises WorkerError if it cannot be started, and ConfigError if there is no Python to start.
    """

    def __init__(self, servers: Sequence[Server] = ()) -> None:
        self._servers = servers
        self._died: WorkerError | None = None
        self._ended_because = ""  # the watcher's reason for ending the worker
        self.closed = False
        self._owed = False  # an answer is still to come, because an interrupt ended the wait for it
        self._busy = False
        self._lock = threading.RLock()
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

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def ask(self, message: object) -> Any:
        """Return the answer to a message. Raises the worker's errors, and WorkerError if it died or hangs."""
        packed = encode(message)
        with self._lock:
            if self._busy:  # this is a finalizer, run in the midst of another call
                raise WorkerError("the worker process is busy; ask again later")
            self._busy = True
            try:
                answer = self._exchange(packed)
            finally:
                self._busy = False
        if isinstance(answer, Raised):
            raise answer.error
        return answer

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self.closed = True
        if threading.current_thread() is self._watcher:  # this is a finalizer, and the watcher may be in any call
            self._channel.close()
            return
        if self._lock.acquire(blocking=False):  # otherwise a call is under way, and finds the process gone
            self._channel.close()
            self._lock.release()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        self._process.kill()
        self._process.wait()
        self._watcher.join()
        with self._lock:
            self._channel.close()

    def _exchange(self, packed: bytes) -> Any:
        if self.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")
        try:
            if self._owed:
                self._receive()
            try:
                self._owed = True
                self._channel.send(packed)
            except BaseException:
                self._process.kill()  # half a message is no use to it, and nothing that follows either
                raise
            return self._receive()
        except (EOFError, OSError):
            if self._died is None or self.closed:
                self._died = self._death()
            raise self._died from None

    def _receive(self) -> Any:
        self._channel.wait()  # an interrupt does no harm here; the answer is read by the next call
        try:
            answer = decode(self._channel.receive())
            self._owed = False
        except BaseException:
            self._process.kill()
            raise
        return answer

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
            f"the worker process {self.pid} {how}{self._because(status)}; close this runtime and open another"
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
