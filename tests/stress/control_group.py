"""A command in a control group of its own: does it live under a limit that the kernel enforces?

    python tests/stress/control_group.py --limit 400MiB [-- ...]

Options after `--` are the command. A group also counts pages of files that the system holds for it, and takes these
back when the limit is reached. What cannot be taken back is what edgekv promises to bound. Without swap, a process that
needs more is killed. It needs root, and control groups of version 1 or 2.

Predicted: no kill at the ceiling that the command names, and the command's own exit status.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from edgekv.memory.sizes import MIB, parse_size


class Files(NamedTuple):
    """Names of a group's files. ended: what tells how many processes were killed"""

    limit: str
    swap_limit: str
    peak: str
    ended: str


ROOT = Path("/sys/fs/cgroup")
VERSION_1 = Files(
    "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"
)
VERSION_2 = Files("memory.max", "memory.swap.max", "memory.peak", "memory.events")


def new_group() -> tuple[Path, Files]:
    """Make a group without processes. Raises SystemExit where that is not possible."""
    is_old = (ROOT / "memory" / VERSION_1.limit).exists()
    group = (ROOT / "memory" if is_old else ROOT) / f"edgekv-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise SystemExit(f"no control group can be made: {error}") from error
    files = VERSION_1 if is_old else VERSION_2
    if not (group / files.limit).exists():
        group.rmdir()
        raise SystemExit(f"control groups at {ROOT} do not limit memory")
    return group, files


def n_killed(group: Path, files: Files) -> int:
    lines = dict(line.split() for line in (group / files.ended).read_text().splitlines())
    return int(lines.get("oom_kill", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    limit = parse_size(arguments.limit)
    group, files = new_group()
    try:
        (group / files.limit).write_text(str(limit))
        swap = group / files.swap_limit
        if swap.exists():
            swap.write_text(str(limit) if files is VERSION_1 else "0")  # version 1 limits memory and swap together
        enter = f'echo $$ > {group / "cgroup.procs"} && exec "$@"'
        status = subprocess.run(["sh", "-c", enter, "sh", *arguments.command], check=False).returncode
        peak, killed = int((group / files.peak).read_text()), n_killed(group, files)
    finally:
        group.rmdir()
    print(
        f"status {status}; the group held at most {peak / MIB:.1f} of {limit / MIB:.1f} MiB, with pages of files; "
        f"killed: {killed}"
    )
    sys.exit(status != 0 or killed > 0)


if __name__ == "__main__":
    main()
