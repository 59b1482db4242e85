"""An open engine: it has to be closed, and frees itself if that was forgotten."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable

from edgekv.planning.plan import Plan


class Opened:
    """Closes itself, with a ResourceWarning, if it is dropped without being closed.

    A runtime and each of its sessions hold the engine, so it lives as long as one of them. Garbage is collected in any
    thread and in the midst of any call. So closing a dropped engine may wait for no lock of another object.

    closed: True once everything was freed, and until all is loaded
    """

    closed: bool = True
    plan: Plan
    _opened_by: int | None = None  # process id; a fork frees nothing

    def opened(self) -> None:
        """Note that everything is loaded."""
        self._opened_by = os.getpid()
        self.closed = False

    def close(self) -> None:
        """Free everything."""
        raise NotImplementedError

    def drop(self) -> None:
        """Free everything, in a finalizer."""
        raise NotImplementedError

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.closed or is_finalizing() or self._opened_by != os.getpid():  # at exit the system frees it
            return
        try:
            warnings.warn(
                f"a runtime of {self.plan.model.name} was dropped without being closed, and is freed only now; call "
                "its close(), or open it in `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            self.drop()
