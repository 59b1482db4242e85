"""The converting process: it limits itself, writes text on standard output, and a report on standard error."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

from edgekv.memory.sizes import format_size

from .report import DocumentError, Report

# control characters that no text has; tabs and line breaks stay
_NOT_TEXT = dict.fromkeys(it for it in range(32) if chr(it) not in "\t\n")
GRACE_S = 5  # seconds that the host has to end the process first
_REPORT_BYTES = 1 << 20


def main(kind: str, path: str, memory_bytes: int, seconds: int) -> None:
    """Convert a document with the module of its kind, within these limits."""
    _limit(memory_bytes, seconds)
    report = Report()
    try:
        converter = importlib.import_module(f"edgekv.documents.{kind}")
        for piece in converter.text_of(Path(path), report):
            sys.stdout.buffer.write(piece.translate(_NOT_TEXT).encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the host wants no more
        os._exit(1)
    except DocumentError as error:
        report.error = str(error)
    except OSError as error:
        report.error = f"cannot be read: {error.strerror or error}; check the path and its permissions"
    except MemoryError:
        report.error = f"takes more than {format_size(memory_bytes)} to convert; split it, or save it as text"
    except RecursionError:
        report.error = "is nested too deeply; save it anew, or as text"
    print(report.as_json(), file=sys.stderr, flush=True)


def _limit(memory_bytes: int, seconds: int) -> None:
    """Limit address space, processor time and files of this process. If the system lacks a limit, the host watches.

    The host ends this process by the clock. Processor time ends it if the host is gone.
    """
    if sys.platform != "win32":
        import resource

        limits = {"AS": memory_bytes, "CPU": seconds + GRACE_S, "FSIZE": _REPORT_BYTES, "CORE": 0}
        for name, limit in limits.items():
            with suppress(AttributeError, ValueError, OSError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
