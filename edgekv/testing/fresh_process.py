"""Fresh processes: started, waited for no longer than a limit, and read.

Fresh means a new program. A forked process would begin with its parent's pages, and `ru_maxrss` with its parent's
peak. Output goes to files: with pipes, a grandchild that holds them open would keep this process waiting.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("child.py")
# Bytes that are kept of the end of each output.
_KEPT_BYTES = 1 << 20


class FreshProcessError(AssertionError):
    """A fresh process was killed, hung, or failed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended by itself and left a result."""

    status: int
    result: Mapping[str, Any]
    stdout: str
    stderr: str


def run_fresh(task: Mapping[str, Any], *, timeout: float, show_output: bool = False) -> Ended:
    """Run `child.py` on a task: "kind", and the arguments of that kind.

    timeout      seconds until the process is killed
    show_output  let it write to the output of this process, instead of keeping its output

    Raises FreshProcessError if it takes longer or leaves no result; the message ends with its output.
    """
    with tempfile.TemporaryDirectory(prefix="edgekv-", ignore_cleanup_errors=True) as folder:
        task_path, result_path, out_path, err_path = (Path(folder, name) for name in ("task", "result", "out", "err"))
        task_path.write_bytes(pickle.dumps({**task, "sys_path": sys.path}))
        command = [sys.executable, str(_PROGRAM), str(task_path), str(result_path)]
        with out_path.open("wb") as out, err_path.open("wb") as err:
            outputs = {} if show_output else {"stdout": out, "stderr": err}
            try:
                ended = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=timeout, check=False, **outputs)  # type: ignore[call-overload]
            except subprocess.TimeoutExpired:
                problem = f"the fresh process was killed after its {timeout:g} s; make it quicker or raise timeout="
                raise FreshProcessError(problem + _said(out_path, err_path)) from None
        if not result_path.is_file():
            problem = f"the fresh process {_ending(ended.returncode)} before its peak could be read"
            raise FreshProcessError(problem + _said(out_path, err_path))
        # Our own program wrote this, in a folder of our own.
        result = pickle.loads(result_path.read_bytes())
        return Ended(ended.returncode, result, _tail(out_path), _tail(err_path))


def output(stdout: str, stderr: str) -> str:
    """Return both outputs under headings, for the end of a message; empty if there is none."""
    parts = (("stdout", stdout), ("stderr", stderr))
    return "".join(f"\n--- {name} of the fresh process ---\n{text.rstrip()}" for name, text in parts if text.strip())


def _said(out_path: Path, err_path: Path) -> str:
    return output(_tail(out_path), _tail(err_path))


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _KEPT_BYTES))
        return file.read().decode(errors="replace")


def _ending(status: int) -> str:
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with status {status}"
