"""A control group of Linux with a memory limit and without swap, for programs that are measured under one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from edgekv.memory.pressure import fixed_bytes

ROOT = Path("/sys/fs/cgroup")
LEAVING_S = 10.0  # a killed program leaves its group a moment later


class Files(NamedTuple):
    """Names of a group's files.

    limit: processes are killed beyond it; high: the kernel takes memory back beyond it
    ended: the file with the number of killed processes
    """

    limit: str
    high: str
    swap_limit: str
    peak: str
    ended: str


VERSION_1 = Files(
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
)
VERSION_2 = Files("memory.max", "memory.high", "memory.swap.max", "memory.peak", "memory.events")


class Group:
    """A group that has its limit; `limited_group` makes one."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder, self._files = folder, files

    def entered(self, command: Sequence[str]) -> list[str]:
        """Return a command that enters the group and becomes the given one."""
        return ["sh", "-c", f'echo $$ > "{self._folder / "cgroup.procs"}" && exec "$@"', "sh", *command]

    def set_limit(self, n_bytes: int) -> None:
        """Set the bytes beyond which processes are killed. Raises OSError if version 1 holds more already."""
        (self._folder / self._files.limit).write_text(str(n_bytes))

    def set_high(self, n_bytes: int) -> None:
        """Set the bytes beyond which the kernel takes memory back."""
        (self._folder / self._files.high).write_text(str(n_bytes))

    @property
    def version(self) -> int:
        """The version of this machine's control groups, 1 or 2."""
        return 1 if self._files is VERSION_1 else 2

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds now, without pages of files that nobody maps."""
        return fixed_bytes(self._folder)

    @property
    def peak_bytes(self) -> int:
        """The most that it held: memory, and the pages of files that its processes read."""
        return int((self._folder / self._files.peak).read_text())

    @property
    def n_killed(self) -> int:
        """Processes that were killed because they needed more than the limit."""
        lines = dict(line.split() for line in (self._folder / self._files.ended).read_text().splitlines())
        return int(lines.get("oom_kill", 0))


@contextmanager
def limited_group(limit_bytes: int | None) -> Iterator[Group]:
    """Make a group without processes; it is removed at the end. None = no limit.

    Raises SystemExit if that is not possible: it needs root, and control groups of version 1 or 2.
    """
    is_old = (ROOT / "memory" / VERSION_1.limit).exists()
    files = VERSION_1 if is_old else VERSION_2
    try:
        folder = Path(tempfile.mkdtemp(prefix="edgekv-", dir=ROOT / "memory" if is_old else ROOT))
    except OSError as error:
        raise SystemExit(f"no control group can be made: {error}") from error
    try:
        if not (folder / files.limit).exists():
            raise SystemExit(f"control groups at {ROOT} do not limit memory")
        if limit_bytes is not None:
            (folder / files.limit).write_text(str(limit_bytes))
            swap = folder / files.swap_limit
            if swap.exists():
                swap.write_text(str(limit_bytes) if is_old else "0")  # version 1 limits memory and swap together
        yield Group(folder, files)
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
