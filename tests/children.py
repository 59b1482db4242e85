"""Programs that tests start: with the signals of a shell, and surely ended."""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import contextmanager

LIMIT_S = 300  # longest life of a child; far more than it takes on a busy machine
SUITE_S = 3600  # longest life of a child that many tests share


@contextmanager
def started(command, *, limit_s=LIMIT_S, **options):
    """A running program (subprocess.Popen) that outlives neither the block nor the limit, whatever happens.

    So whoever waits for it, or reads what it says, does not wait for ever.

    It begins with SIGINT as a shell leaves it. A suite that is started with `nohup ... &` ignores that signal, and what
    it starts would ignore it too.
    """
    with default_interrupt():
        process = subprocess.Popen([*map(str, command)], **options)
    watchdog = threading.Timer(limit_s, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        watchdog.join(LIMIT_S)
        process.kill()  # does nothing where it has ended
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait(LIMIT_S)


@contextmanager
def default_interrupt():
    """Programs that are started meanwhile do not ignore SIGINT: what has a handler here is at its default there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
