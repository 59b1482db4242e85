"""Long texts of requests, on the disk: one file for all while a request waits, a file each while it is answered."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from typing import Any

from edgekv.api.api_errors import RETRY_S, ApiError
from edgekv.api.reply_request import LONG_CHARS, ReplyRequest
from edgekv.errors import InputError, SessionFileError
from edgekv.memory.raw_files import write_all
from edgekv.prompt.spool import spooled
from edgekv.store.temp_array import temp_file

log = logging.getLogger("edgekv.server")

PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SpilledText:
    """A text in the file of its request: the bytes [start, stop)."""

    file: FileIO
    start: int
    stop: int

    def pieces(self) -> Iterator[str]:
        """Yield the text in pieces. Raises OSError."""

        def raw() -> Iterator[bytes]:
            for at in range(self.start, self.stop, PIECE_BYTES):
                self.file.seek(at)
                yield self.file.read(min(PIECE_BYTES, self.stop - at))

        return codecs.iterdecode(raw(), "utf-8")


def spill_texts(request: ReplyRequest, stack: ExitStack) -> ReplyRequest:
    """Return the request with its long texts in one file, which goes when the stack is closed. Raises ApiError.

    A process has about a thousand descriptors. A request that waits takes one, however many long texts it has.
    """
    file: FileIO | None = None

    def lay(text: Any) -> Any:
        nonlocal file
        if not isinstance(text, str) or not _is_long(text):
            return text
        if file is None:
            file = stack.enter_context(temp_file(None))
        start = file.tell()
        write_all(file, memoryview(text.encode()))
        return SpilledText(file, start, file.tell())

    with _failing():
        return _with_texts(request, lay)


@contextmanager
def texts_in_files(request: ReplyRequest) -> Iterator[ReplyRequest]:
    """Yield the request with the Path of a file for each spilled text, as the model reads it. Raises ApiError."""
    with ExitStack() as stack:

        def lift(text: Any) -> Any:
            return stack.enter_context(spooled(text.pieces())) if isinstance(text, SpilledText) else text

        with _failing():
            found = _with_texts(request, lift)
        yield found


def _with_texts(request: ReplyRequest, change: Callable[[Any], Any]) -> ReplyRequest:
    messages = tuple({**message, "content": change(message["content"])} for message in request.messages)
    files = tuple((name, change(text)) for name, text in request.files)
    return replace(
        request, messages=messages, prompt=change(request.prompt), suffix=change(request.suffix), files=files
    )


@contextmanager
def _failing() -> Iterator[None]:
    """Translate errors of the disk: they are not the client's fault. Raises ApiError."""
    try:
        yield
    except (InputError, SessionFileError, OSError) as error:
        log.warning("%s", error)
        raise ApiError(
            503, "no_room", "the disk does not take what this request needs; try again later", retry_after_s=RETRY_S
        ) from error


def _is_long(text: str) -> bool:
    """Return True if a text is long, and may lie in a file: files of blanks, or with a NUL, are refused as no texts."""
    return len(text) > LONG_CHARS and "\0" not in text and not text.isspace()
