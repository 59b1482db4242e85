"""Runs a program in a control group of Linux with a memory limit and without swap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LEAVING_S = 10.0  # a killed program leaves its group a moment later


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a group: its limit, the limit that swap counts in, and its peak."""

    limit: str
    with_swap: str
    peak: str
    no_swap: str | None  # what forbids swap; None = the limit itself


FIRST_VERSION = Files("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes", None)
SECOND_VERSION = Files("memory.max", "memory.swap.max", "memory.peak", "0")


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


def run_in_group(command: Sequence[str], limit_bytes: int | None, at_most_s: float | None = None) -> Run:
    """Run a program in a group of its own; it is killed if it needs more than the limit. None = no limit."""
    with _group(limit_bytes) as (folder, files):
        into = f'echo $$ > "{folder / "cgroup.procs"}" && exec "$@"'
        started = time.monotonic()
        child = subprocess.Popen(
            ["sh", "-c", into, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        status: int | None
        try:
            output, errors = child.communicate(timeout=at_most_s)
            status = child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, errors = child.communicate()
            status = None
        seconds = time.monotonic() - started
        return Run(status, seconds, output, errors, int((folder / files.peak).read_text()))


@contextmanager
def _group(limit_bytes: int | None) -> Iterator[tuple[Path, Files]]:
    """Make a group with a limit; yields its folder and files."""
    is_first = (ROOT / "memory").is_dir()
    parent, files = (ROOT / "memory", FIRST_VERSION) if is_first else (ROOT, SECOND_VERSION)
    try:
        folder = Path(tempfile.mkdtemp(prefix="edgekv-", dir=parent))
        if limit_bytes is not None:
            (folder / files.limit).write_text(str(limit_bytes))
        if limit_bytes is not None and (folder / files.with_swap).exists():
            (folder / files.with_swap).write_text(files.no_swap or str(limit_bytes))
    except OSError as error:
        sys.exit(f"{parent} takes no control group with a memory limit: {error.strerror}; run this as root on Linux")
    try:
        yield folder, files
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    end = time.monotonic() + LEAVING_S
    while True:
        try:
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
