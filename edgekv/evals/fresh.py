"""Measures in a fresh process that does nothing else, so that its peak of memory is that of the measured function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from edgekv.errors import WorkerError
from edgekv.extras import has_interpreter
from edgekv.testing.ceiling import MemoryCeiling
from edgekv.testing.fresh_process import FreshProcessError

MOST_SECONDS = 7 * 24 * 3600.0  # a process that hangs does not stay for ever


def in_fresh_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run a function in a fresh process; return its result, and that process's "peak_bytes".

    The function and its arguments must pickle. Raises the function's errors, and WorkerError if the process is killed
    or if there is no interpreter to start.
    """
    if not has_interpreter():
        raise WorkerError(  # no ConfigError, which would stay among the results
            "eval and bench measure in a Python interpreter, and this program has none; use an installed edgekv"
        )
    try:
        run = MemoryCeiling(sys.maxsize, timeout=MOST_SECONDS).run(function, *arguments)
    except FreshProcessError as error:
        raise WorkerError(f"{error}; was there enough memory?") from error
    return {**run.value, "peak_bytes": run.peak_bytes}
