"""Programs without an interpreter to start, such as PyInstaller's: the worker is the program, started once more.

Such a program must call `serve_if_worker` first. PyInstaller's hook of edgekv does so (edgekv/__pyinstaller); a program
that another tool froze calls it at its top.
"""

from __future__ import annotations

import sys

ARGUMENT = "--edgekv-worker"

_is_prepared = False


def serve_if_worker() -> None:
    """Be the worker if this process was started as one, and never return then. Otherwise it may start workers."""
    global _is_prepared
    _is_prepared = True
    if sys.argv[1:2] == [ARGUMENT]:
        from .worker_main import main

        main(*map(int, sys.argv[2:]))


def is_prepared() -> bool:
    """Return True if this program, started once more, becomes a worker."""
    return _is_prepared
