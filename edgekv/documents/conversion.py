"""Conversions of documents, each in a process of its own that ends with it. The text comes piece by piece."""

from __future__ import annotations

import codecs
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgekv.counting import counted
from edgekv.errors import ConfigError, InputError
from edgekv.extras import check_installed, has_interpreter
from edgekv.memory.sizes import MIB, format_size

from .formats import PDF, REFUSED
from .report import BlankTextError, Report, report_of

CODE = "import sys; sys.path[:] = {path!r}; from edgekv.documents.converter_main import main; main{arguments!r}"
PIECE_BYTES = 1 << 14
IS_LIMITED = sys.platform == "linux"  # the system limits the address space of a process
POLL_S = 0.05  # seconds between two looks at the memory of a process that cannot be limited


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one conversion.

    memory_bytes: address space of its process on Linux, resident bytes elsewhere
    seconds: time by the clock
    text_bytes: UTF-8 text of the document, at most
    """

    memory_bytes: int = 256 * MIB
    seconds: int = 600
    text_bytes: int = 256 * MIB


def convert(
    path: Path, kind: str, limits: Limits | None = None, note: Callable[[str], None] | None = None
) -> Generator[str, None, None]:
    """Yield the text of a document.

    kind: its format, of `formats.format_of`; limits: None = those of `Limits`
    note: takes a message about pages without text and other parts that are not read; None = give a warning

    Raises InputError for a document that cannot be converted or has no text, and
    ConfigError if the package that converts it is not installed.
    """
    limits = Limits() if limits is None else limits
    if kind in REFUSED:
        raise InputError(f"{path} is a file {kind}, which is not read; save it as .docx or PDF")
    if kind == PDF:
        check_installed("pypdfium2", "documents")
    decoder, n_bytes, is_blank = codecs.getincrementaldecoder("utf-8")(), 0, True
    with _started(path, kind, limits) as (process, errors):
        with _Watch(process, limits) as watch:
            while raw := process.stdout.read1(PIECE_BYTES):  # type: ignore[union-attr]
                n_bytes += len(raw)
                if n_bytes > limits.text_bytes:
                    raise InputError(
                        f"{path} has more than {format_size(limits.text_bytes)} of text, the most that a document may; "
                        "split it, or convert it yourself"
                    )
                piece = decoder.decode(raw)
                is_blank = is_blank and not piece.strip()
                yield piece
            status = process.wait()
        errors.seek(0)
        report = report_of(errors.read().decode("utf-8", "replace"))
    report = _checked(path, report, status, watch.ended_because, limits)
    for told in _notes(path, report, is_blank=is_blank):
        if note is None:
            warnings.warn(told, stacklevel=2)
        else:
            note(told)


def _checked(path: Path, report: Report | None, status: int, ended_because: str, limits: Limits) -> Report:
    """Return the report of a conversion that succeeded. Raises InputError for one that failed."""
    if report is not None and report.error:
        raise InputError(f"{path} {report.error}")
    if ended_because:
        raise InputError(f"{path} {ended_because}; split it, or save it as text")
    if report is None:
        raise InputError(
            f"{path} cannot be converted in {format_size(limits.memory_bytes)} and {limits.seconds} s: its process "
            f"ended with status {status}; the file is damaged or made to take more, so get it again, or save it as text"
        )
    return report


def _notes(path: Path, report: Report, *, is_blank: bool) -> Iterator[str]:
    """Yield the messages about a document. Raises InputError if it has no text."""
    remedy = "run OCR over it, as `ocrmypdf` does"
    if is_blank:
        if not report.n_pages:
            raise BlankTextError(f"{path} has no text")
        raise InputError(f"{path} has no text on its {counted(report.n_pages, 'page')}, as a scan has none; {remedy}")
    if report.n_blank:
        yield (
            f"{path} has no text on {report.n_blank:,} of its {counted(report.n_pages, 'page')} "
            f"({report.blank_pages()}), as scans have none; if they matter, {remedy}"
        )
    if report.left_out:
        parts = ", ".join(f"{what} ({counted(n, 'character')})" for what, n in report.left_out.items())
        yield f"{path} is read without its {parts}"
    for told in report.notes:
        yield f"{path} {told}"


@contextmanager
def _started(path: Path, kind: str, limits: Limits) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start a process that converts a document, and yield it with its standard error. It is ended with the block."""
    if not has_interpreter():
        raise ConfigError(f"{path} is converted by a Python interpreter, and this program has none; give its text")
    arguments = (kind, os.path.abspath(path), limits.memory_bytes, limits.seconds)
    with ExitStack() as stack:
        try:
            errors = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                [sys.executable, "-c", CODE.format(path=sys.path, arguments=arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the host, which ends it
            )
        except OSError as error:
            raise InputError(
                f"{path} cannot be converted, which takes a process and a temporary file: {error.strerror or error}; "
                "name fewer files at once, end other programs, or name a folder with room in TMPDIR"
            ) from error
        stack.enter_context(process)
        stack.callback(process.kill)
        yield process, errors


class _Watch:
    """Ends a process that takes too long, and one that takes too much memory if the system does not limit it."""

    def __init__(self, process: subprocess.Popen[bytes], limits: Limits) -> None:
        self.ended_because = ""
        self._process = process
        self._limits = limits
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgekv-conversion", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        limits = self._limits
        deadline = time.monotonic() + limits.seconds
        while not self._done.wait(max(0.0, deadline - time.monotonic()) if IS_LIMITED else POLL_S):
            if time.monotonic() >= deadline:
                self._end(f"takes more than {limits.seconds} s to convert")
                return
            if not IS_LIMITED and _resident(self._process.pid) > limits.memory_bytes:
                self._end(f"takes more than {format_size(limits.memory_bytes)} to convert")
                return

    def _end(self, because: str) -> None:
        self.ended_because = because
        self._process.kill()


def _resident(pid: int) -> int:
    """Return the resident bytes of a process; 0 if it has ended."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
