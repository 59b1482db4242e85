"""A program that runs under a memory limit: its output, its time, and the most memory that it took."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .limited_group import limited_group


@dataclass(frozen=True, slots=True)
class Run:
    """A program that ended, or was stopped.

    status: its exit status; negative = a signal killed it; None = it took too long
    peak_bytes: the most that its memory and the pages of files that it read took together
    """

    status: int | None
    seconds: float
    output: str
    errors: str
    peak_bytes: int


def run_in_group(command: Sequence[str], limit_bytes: int | None, at_most_s: float | None) -> Run:
    """Run a program in a group of its own; it is killed if it needs more than the limit. None = no limit.

    Raises SystemExit as `limited_group` does.
    """
    with limited_group(limit_bytes) as group:
        started = time.monotonic()
        child = subprocess.Popen(
            group.entered(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        status: int | None = None
        try:
            output, errors = child.communicate(timeout=at_most_s)
            status = child.returncode
        except subprocess.TimeoutExpired:
            _kill(child)
            output, errors = child.communicate()
        except BaseException:  # Ctrl-C does not reach another session
            _kill(child)
            child.wait()
            raise
        return Run(status, time.monotonic() - started, output, errors, group.peak_bytes)


def _kill(child: subprocess.Popen[str]) -> None:
    """Kill a program and all that it started."""
    if sys.platform == "win32":  # there are no control groups either
        child.kill()
    else:
        os.killpg(child.pid, signal.SIGKILL)
