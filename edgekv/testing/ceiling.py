"""A memory ceiling for functions and scripts, each run in a fresh process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError
from edgekv.memory.sizes import parse_size

from .fresh_process import Ended, FreshProcessError, output, run_fresh
from .memory_meter import Measured


class OverCeilingError(AssertionError):
    """A process held more than its ceiling. `measured` has the figures; the message is a table of them."""

    def __init__(self, message: str, measured: Measured) -> None:
        super().__init__(message)
        self.measured = measured


@dataclass(frozen=True, slots=True)
class Run:
    """A run that stayed under its ceiling. value: what the function returned; None for a script."""

    peak_bytes: int
    measured: Measured
    stdout: str
    stderr: str
    value: Any = None


@dataclass(frozen=True)
class MemoryCeiling:
    """The most that one process may hold. Python and all of its imports count; child processes do not.

    size     bytes, or a size such as "512MiB"
    timeout  seconds until the process is killed

    Raises ConfigError for values that cannot work.
    """

    size: int | str
    timeout: float = 600.0
    ceiling_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ceiling_bytes", parse_size(self.size))
        seconds = self.timeout
        if isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 < seconds < float("inf"):
            raise ConfigError(f"timeout={seconds!r} is not possible; give a positive number of seconds")

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Run:
        """Call a function in a fresh process.

        The function must be at the top level of a module that the process can import, and its arguments and value must
        pickle. An exception that it raises is raised here. Raises OverCeilingError, FreshProcessError, and ConfigError
        if the arguments or the value do not pickle.
        """
        __tracebackhide__ = True
        try:
            call = pickle.dumps((function, args, kwargs))
        except Exception as error:
            raise ConfigError(
                f"{_name(function)} or its arguments cannot be sent to a fresh process ({error}); define the function "
                "at the top of a module, and give it paths and plain values"
            ) from error
        ended = run_fresh({"kind": "call", "call": call}, timeout=self.timeout)
        try:
            value = _value(function, ended)
        finally:
            self.check(ended.result["measured"])
        return self._ended(ended, value)

    def run_script(self, path: str | os.PathLike[str], /, *arguments: str | os.PathLike[str]) -> Run:
        """Run a Python script in a fresh process.

        Raises OverCeilingError, FreshProcessError if the script fails, and ConfigError if there is none.
        """
        __tracebackhide__ = True
        script = Path(path)
        if not script.is_file():
            raise ConfigError(f"there is no script {str(script)!r}; give the path of a Python file")
        task = {"kind": "script", "script": str(script), "arguments": [os.fspath(argument) for argument in arguments]}
        ended = run_fresh(task, timeout=self.timeout)
        if ended.status:
            raise FreshProcessError(
                f"{script.name} ended with status {ended.status}" + output(ended.stdout, ended.stderr)
            )
        self.check(ended.result["measured"])
        return self._ended(ended, None)

    def check(self, measured: Measured) -> None:
        """Raise OverCeilingError if a process held more."""
        __tracebackhide__ = True
        if measured.peak > self.ceiling_bytes:
            raise OverCeilingError(measured.table(self.ceiling_bytes), measured)

    def _ended(self, ended: Ended, value: Any) -> Run:
        measured: Measured = ended.result["measured"]
        return Run(measured.peak, measured, ended.stdout, ended.stderr, value)


def _value(function: Callable[..., Any], ended: Ended) -> Any:
    """Return the function's result. Raises its exception, with its traceback as the cause."""
    __tracebackhide__ = True
    result: Mapping[str, Any] = ended.result
    if result["trace"] is not None:
        cause = FreshProcessError(f"in the fresh process:\n{result['trace']}" + output(ended.stdout, ended.stderr))
        if result["error"] is None:
            raise cause
        raise pickle.loads(result["error"]) from cause
    if result["value"] is None:
        raise ConfigError(f"what {_name(function)} returns cannot be sent back; return plain values")
    return pickle.loads(result["value"])


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
