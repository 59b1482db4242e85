"""A command in a control group of its own: does it live under a limit that the kernel enforces?

    python tests/stress/control_group.py --limit 400MiB [-- ...]

Options after `--` are the command. A group also counts pages of files that the system holds for it, and takes these
back when the limit is reached. What cannot be taken back is what edgekv promises to bound. Without swap, a process that
needs more is killed. It needs root, and control groups of version 1 or 2.

Predicted: no kill at the ceiling that the command names, and the command's own exit status.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from edgekv.memory.sizes import MIB, parse_size
from edgekv.testing.limited_group import limited_group


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    limit = parse_size(arguments.limit)
    with limited_group(limit) as group:
        status = subprocess.run(group.entered(arguments.command), check=False).returncode
        peak, killed = group.peak_bytes, group.n_killed
    print(
        f"status {status}; the group held at most {peak / MIB:.1f} of {limit / MIB:.1f} MiB, with pages of files; "
        f"killed: {killed}"
    )
    sys.exit(status != 0 or killed > 0)


if __name__ == "__main__":
    main()
