"""A loop in a thread of this process, and the way to it."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from edgekv.cells.loaded_model import LoadedModel
from edgekv.errors import SessionError

from .loop import Loop
from .loop_channel import Mailbox
from .loop_messages import CLOSED, Raised, Stop
from .open_reply import Post

DROP_S = 1.0  # the most that a finalizer waits for a step under way
EXIT_S = 10.0  # the most that the end of the program waits for a step under way


class LoopThread:
    """Runs a loop in a thread. Any thread may post messages to it. Close it.

    A program that ends without closing it waits for the step under way, so that no native code runs meanwhile.
    """

    worker_pid = None
    alive = True

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._pid = os.getpid()
        self._serving = _Serving(loop)
        serve = partial(_serve, weakref.ref(self._serving), self._serving.inbox)
        self._thread = threading.Thread(target=serve, name="edgekv-loop", daemon=True)
        self._thread.start()
        _running.add(self)

    @property
    def loaded(self) -> LoadedModel:
        """The model, for use while no message is at work."""
        return self.loop.engine.loaded

    def post(self, message: object, client: int | None = None) -> Mailbox:
        """Post a message, without waiting; returns the place of its answer. Finalizers may call this, too.

        client: who waits for the answer; None = this thread
        """
        box = Mailbox()
        self._serving.put(Post(message, box.put, threading.get_ident() if client is None else client))
        return box

    def request(self, message: object, client: int | None = None) -> Mailbox:
        """Post a message whose answer is waited for. Raises SessionError in the loop's callbacks and after a fork."""
        if threading.get_ident() == self._thread.ident:
            raise SessionError(
                "the cells are at work in this very call, such as one of a scorer; use the session after it"
            )
        if self._pid != os.getpid():
            raise SessionError("this runtime was opened before the process forked; open another one after the fork")
        return self.post(message, client)

    def ask(self, message: object) -> Any:
        """Return the answer to a message. Raises its error, and what `request` raises."""
        return self.request(message).get()

    def look(self, number: int, name: str) -> Any:
        """Return a value of a conversation that any thread may read at any time, as it was last noted."""
        return getattr(self.loop.conversation(number), name)

    def close(self) -> None:
        """Cancel what is at work, free everything, and wait for that. A callback of the loop cannot wait."""
        answer = self.post(Stop())
        if threading.current_thread() is not self._thread:
            answer.get()
            self._thread.join()

    def drop(self) -> None:
        """Free everything, in a finalizer: no client is left, and the loop does at most what it does now."""
        if threading.current_thread() is not self._thread:
            self._serving.close()
        self.post(Stop())

    def halt(self) -> None:
        """Wait for the step under way at the end of the program, and begin no other one."""
        if self._pid == os.getpid():
            self._serving.halt()


class _Serving:
    """The work of the thread.

    work: held meanwhile; inbox: messages that came
    has_ended: the engine is closed, or the program ends
    """

    def __init__(self, loop: Loop) -> None:
        self.work = threading.Lock()
        self.inbox: SimpleQueue[Post] = SimpleQueue()
        self.has_ended = False
        self._loop = loop

    def put(self, post: Post) -> None:
        """Take a message, which is refused if the loop has ended."""
        self.inbox.put(post)
        if self.has_ended:
            self.refuse()

    def go_on(self, post: Post | None) -> float | None:
        """Take a message, and work until the next message; returns the seconds to wait for it."""
        with self.work:
            if self.has_ended:
                if post is not None:
                    self.inbox.put(post)
                return None
            try:
                if post is not None:
                    self._loop.take(post)
                wait: float | None = 0.0
                while wait == 0.0 and self.inbox.empty() and not self.has_ended:
                    wait = self._loop.step()
                return wait
            except BaseException:
                self._loop.close()
                raise
            finally:
                if self._loop.engine.closed:
                    self.has_ended = True

    def close(self) -> None:
        """Free everything, unless the step under way takes longer than DROP_S."""
        if self.work.acquire(timeout=DROP_S):
            try:
                self._loop.close()
            finally:
                self.has_ended = True
                self.work.release()

    def refuse(self) -> None:
        """Answer all messages to a loop that has ended."""
        with suppress(Empty):
            while True:
                post = self.inbox.get_nowait()
                post.answer(None if isinstance(post.message, Stop) else Raised(SessionError(CLOSED)))

    def halt(self) -> None:
        """Wait for the step under way, and end after it."""
        self.has_ended = True
        if self.work.acquire(timeout=EXIT_S):
            self.work.release()


def _serve(found: weakref.ref[_Serving], inbox: SimpleQueue[Post]) -> None:
    """Work until the loop has ended. While it waits, the thread keeps nothing alive, so that it can be dropped."""
    wait: float | None = None
    while True:
        try:
            post: Post | None = inbox.get(timeout=wait)
        except Empty:
            post = None
        serving = found()
        if serving is None:
            return
        try:
            wait = serving.go_on(post)
        finally:
            if serving.has_ended:
                serving.refuse()
        if serving.has_ended:
            return
        del serving, post


_running: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register
def _halt() -> None:
    for thread in list(_running):
        thread.halt()
