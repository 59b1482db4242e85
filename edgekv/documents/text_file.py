"""Text files of any length, read piece by piece: memory does not grow with them."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from edgekv.errors import InputError

from .encodings import UTF_8, TextDecoder, known_encoding, marked_encoding
from .formats import is_document
from .report import BlankTextError

PIECE_BYTES = 1 << 14

_XML_ENCODING = re.compile(rb"""<\?xml[^>]{1,200}?encoding=["']([A-Za-z][\w.-]*)""")


def read_text(path: str | os.PathLike[str], note: Callable[[str], None] | None = None) -> Generator[str, None, None]:
    """Yield pieces of a text file. Errors and `note` as of `decoded`; raises InputError if it cannot be read, too."""
    try:
        with Path(path).open("rb") as file:
            yield from decoded(file, os.fspath(path), note)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give the path of a text file") from error


def decoded(file: BinaryIO, name: str, note: Callable[[str], None] | None = None) -> Iterator[str]:
    """Yield pieces of an open text; errors call it `name`. Raises InputError if it is not text, or is blank.

    It is UTF-8 unless it says otherwise, by a byte order mark or in an XML declaration.
    note: is told of bytes that are no text, if they are few; None = a warning is given
    """
    raw = file.read(PIECE_BYTES)
    if is_document(raw):
        raise InputError(f"{name} is a document, such as a PDF, and no text; store it as a file to ask about that")
    encoding = encoding_of(raw, name)
    decoder = TextDecoder(encoding)
    offset = 0
    is_blank = True
    while True:
        if encoding == UTF_8 and b"\0" in raw:
            raise InputError(f"{name} is not text: byte {offset + raw.index(0)} is 0; give a UTF-8 text file")
        try:
            piece = decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise InputError(f"{name} is not {encoding} text ({error.reason}); convert it to UTF-8") from error
        if decoder.has_other_encoding:
            raise InputError(f"{name} {decoder.damage}; {decoder.remedy}")
        is_blank = is_blank and not piece.strip()
        yield piece
        if not raw:
            break
        offset += len(raw)
        raw = file.read(PIECE_BYTES)
    if decoder.note:
        (note or _warn)(f"{name} {decoder.note}")
    if is_blank:  # a model would answer all the same, and invent its answer
        what = "nothing but blanks" if offset else "nothing"
        raise BlankTextError(f"{name} holds {what}; give a file with a text in it")


def _warn(told: str) -> None:
    warnings.warn(told, stacklevel=1)  # from one place, so that it is shown once of a text that is read twice


def encoding_of(beginning: bytes, name: str) -> str:
    """Return the encoding that a text says it has, or UTF-8. Raises InputError for an unknown one."""
    declared = _XML_ENCODING.match(beginning)
    if (marked := marked_encoding(beginning)) is not None or declared is None:
        return marked or UTF_8
    encoding = known_encoding(declared[1].decode("ascii"))
    if encoding is None:
        raise InputError(
            f"{name} declares the encoding {declared[1].decode()!r}, which is unknown; convert it to UTF-8"
        )
    return UTF_8 if encoding == "utf-8" else encoding
