"""Encodings of texts, where they are certain: a byte order mark says them, or a declaration."""

from __future__ import annotations

import codecs

UTF_8 = "utf-8-sig"

# byte order marks; that of UTF-16 begins that of UTF-32
_MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def marked_encoding(beginning: bytes) -> str | None:
    """Return the encoding that a byte order mark says; None = there is no mark."""
    return next((encoding for mark, encoding in _MARKS if beginning.startswith(mark)), None)


def known_encoding(name: str) -> str | None:
    """Return Python's name of an encoding of texts; None = it is unknown."""
    try:
        "".encode(name)  # fails for codecs that are of no text, too
        return codecs.lookup(name).name
    except (LookupError, UnicodeError):
        return None
