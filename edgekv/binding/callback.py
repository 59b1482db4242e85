"""Python functions that the native library calls. No exception may pass through the library; it is raised later."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

_LOCK = threading.RLock()  # guards `sys.unraisablehook`


class Callback:
    """A Python function, and in `native` the C function that calls it. Call the library inside `with callback:`.

    prototype: made by `ctypes.CFUNCTYPE`
    failed: the answer that the library reads as a failure, given once the function has raised

    The end of the block raises what the function raised, not the library's error for it. ctypes
    itself drops an exception before the first line of a call or after its last, such as Ctrl-C, and hands it to
    `sys.unraisablehook`. The callback finds it there. The library's answer to that call is then undefined.
    """

    def __init__(self, prototype: Callable[..., Any], function: Callable[..., Any], failed: Any) -> None:
        self._function, self._failed = function, failed
        self._error: BaseException | None = None
        self.hook: _Hook | None = None  # hook of the block that is entered
        self.called = self._answer  # the object that ctypes passes to the hook
        self.native = prototype(self.called)

    def __enter__(self) -> None:
        self._error = None
        with _LOCK:
            self.hook = sys.unraisablehook = _Hook(self)

    def __exit__(self, *_: object) -> None:
        self.hook = None
        _drop_hooks()
        error, self._error = self._error, None
        if error is not None:
            raise error from None

    def keep(self, error: BaseException) -> None:
        """Have the end of the block raise an error, unless there was one before."""
        self._error = error if self._error is None else self._error

    def _answer(self, *arguments: Any) -> Any:
        try:
            if self._error is None:
                answer = self._function(*arguments)
                if self._error is None:  # an interrupt within a finalizer raises nothing here
                    return answer
        except BaseException as error:
            self.keep(error)
        return self._failed


class _Hook:
    """Hook that keeps exceptions that ctypes drops in a callback and thread, and interrupts that finalizers drop there.

    All other exceptions go to the hook that was there before.
    """

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._thread = threading.get_ident()
        self.before = sys.unraisablehook

    def __call__(self, dropped: sys.UnraisableHookArgs) -> None:
        if not self.is_over and self._thread == threading.get_ident() and self._is_kept(dropped):
            self._callback.keep(dropped.exc_type() if dropped.exc_value is None else dropped.exc_value)
        else:
            self.before(dropped)

    def _is_kept(self, dropped: sys.UnraisableHookArgs) -> bool:
        called = self._callback.called  # Python 3.13 and later name it in the message alone
        is_own = dropped.object is called or repr(called) in (dropped.err_msg or "")
        return is_own or issubclass(dropped.exc_type, KeyboardInterrupt)

    @property
    def is_over(self) -> bool:
        """Return True if its block was left. Another thread's hook may still lie over it."""
        return self._callback.hook is not self


def _drop_hooks() -> None:
    """Put back the hook that was there before the blocks that are over."""
    with _LOCK:
        while isinstance(sys.unraisablehook, _Hook) and sys.unraisablehook.is_over:
            sys.unraisablehook = sys.unraisablehook.before
