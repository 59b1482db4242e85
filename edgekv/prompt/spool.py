"""Copy texts of pipes and documents to the disk, because a prompt is read twice: to be counted, and to be fed."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from edgekv.documents.formats import format_of, is_document
from edgekv.documents.text_file import read_text
from edgekv.errors import InputError
from edgekv.memory.raw_files import write_all

PROC = Path("/proc")
LOOKED_AT = 16  # characters that tell a document from a text
# Names of open files of this process; in a worker process they would name other files.
_OWN_FILES = ("/dev/std", "/dev/fd/", "/proc/self/", "/proc/thread-self/")


@contextmanager
def rereadable(path: Path, cancelled: threading.Event | None = None) -> Iterator[Path]:
    """Yield a path whose text can be read more than once: this path, or a copy that lasts as long as the block.

    A document, such as a PDF, is converted: the copy has its text.

    cancelled: ends the copying once it is set
    Raises InputError for a text that must be copied and cannot be read, and the errors of `documents.convert`.
    """
    reads_once = _reads_once(path)
    kind = None if reads_once else format_of(path)
    if not reads_once and kind is None:
        yield path
        return
    with closing(read_text(path) if kind is None else _converted(path, kind)) as pieces:
        wanted: Iterable[str] = pieces
        if cancelled is not None:
            wanted = itertools.takewhile(lambda _: not cancelled.is_set(), pieces)
        with spooled(wanted) as copy:
            yield copy


def _converted(path: Path, kind: str) -> Generator[str, None, None]:
    from edgekv.documents.conversion import convert  # few prompts have documents

    return convert(path, kind)


def _reads_once(path: Path) -> bool:
    try:
        is_regular = stat.S_ISREG(path.stat().st_mode)
        is_folder = path.is_dir()
    except OSError:
        return False  # the reader raises the error
    return not (is_regular or is_folder) or os.path.abspath(path).startswith(_OWN_FILES)


@contextmanager
def spooled(pieces: Iterable[str]) -> Iterator[Path]:
    """Yield a file that holds these pieces and is removed after the block. Memory does not grow with the text.

    `read_text` gives the same text, even if that begins with a byte order mark.

    On Linux the file has no name, so nothing of it is left when the process ends. Worker processes can read it too.
    Raises InputError if the disk has no room for it.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix="edgekv-text-")
    except OSError as error:
        raise _no_room(error) from error
    nameless = copies_are_nameless()
    try:
        if nameless:
            os.unlink(name)
        with open(descriptor, "wb", buffering=0) as copy:
            for piece in _marked(pieces):
                try:
                    write_all(copy, memoryview(piece.encode()))
                except OSError as error:
                    raise _no_room(error) from error
            yield PROC / str(os.getpid()) / "fd" / str(descriptor) if nameless else Path(name)
    finally:
        if not nameless:
            with suppress(OSError):
                os.unlink(name)


def copies_are_nameless() -> bool:
    """Return True if copies have no names, and are gone with the process."""
    return sys.platform != "win32" and PROC.is_dir()  # any folder may have that name on Windows


def _marked(pieces: Iterable[str]) -> Iterator[str]:
    """Yield pieces, after a byte order mark if the text has one, begins as a document does, or declares an encoding."""
    pieces, beginning = iter(pieces), ""
    while len(beginning) < LOOKED_AT and (piece := next(pieces, None)) is not None:
        beginning += piece
    if is_document(beginning.encode()) or beginning.startswith(("<?xml", "\ufeff")):
        yield "\ufeff"
    yield beginning
    yield from pieces


def _no_room(error: OSError) -> InputError:
    remedy = "name fewer files at once" if error.errno == errno.EMFILE else "name a folder with room in TMPDIR"
    return InputError(f"the text cannot be copied to a temporary file: {error.strerror or error}; {remedy}")
