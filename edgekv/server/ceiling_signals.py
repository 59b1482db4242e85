"""Signals that move the ceiling of a server: SIGUSR1 down as far as it can be, SIGUSR2 back. Windows has neither."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any

import edgekv
from edgekv.memory.sizes import format_size
from edgekv.moving_ceiling import LEAST

from .session_pool import SessionPool

log = logging.getLogger("edgekv.server")


class CeilingSignals:
    """The handlers of these signals, for the length of a `with`. A thread moves the ceiling, in order of arrival."""

    def __init__(self, pool: SessionPool) -> None:
        self._moves: dict[int, Callable[[], edgekv.Plan]] = {}
        if sys.platform != "win32":
            self._moves = {signal.SIGUSR1: lambda: pool.set_memory(LEAST), signal.SIGUSR2: pool.restore_memory}
        self._before: dict[int, Any] = {}  # handlers of before
        self._came: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name="edgekv-signals", daemon=True)

    def __enter__(self) -> CeilingSignals:
        """Begin to listen. Only the main thread of a process may."""
        for number in self._moves:
            self._before[number] = signal.signal(number, self.take)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._came.put(None)
        self._thread.join()

    def take(self, number: int, _frame: FrameType | None = None) -> None:
        """Note a signal. This may interrupt itself, which this queue allows."""
        self._came.put(number)

    def _follow(self) -> None:
        while (number := self._came.get()) is not None:
            name = signal.Signals(number).name
            try:
                plan = self._moves[number]()
            except edgekv.EdgeKVError as error:
                log.warning("%s: the ceiling stays: %s", name, error)
            else:
                log.info("%s: the ceiling is %s, %d cells", name, format_size(plan.ceiling_bytes), plan.budget_cells)
