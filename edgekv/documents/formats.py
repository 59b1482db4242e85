"""The format of a document, told by how a file begins; HTML is told by its name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# names of the modules that convert them
PDF, ZIPPED, HTML = "pdf", "zipped", "html"

# formats that cannot be converted, in words that go after "a file"
OLD_OFFICE, RTF = "of an old Office", "in RTF"
REFUSED = (OLD_OFFICE, RTF)

# endings of files in a folder that are documents; a file that is named is told by its first bytes
_ENDINGS = {".pdf": PDF, ".docx": ZIPPED, ".epub": ZIPPED, ".html": HTML, ".htm": HTML, ".xhtml": HTML}
_BEGINNINGS = (
    (b"%PDF-", PDF),
    (b"PK\x03\x04", ZIPPED),
    (b"PK\x05\x06", ZIPPED),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", OLD_OFFICE),
    (b"{\\rtf", RTF),
)
_HEADER_BYTES = 1024  # readers look for %PDF- here


def format_of(path: Path) -> str | None:
    """Return the format of a regular file that has to be converted; None = a text, or not a regular file."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            beginning = file.read(_HEADER_BYTES)
    except OSError:
        return None  # the reader raises the error
    for magic, name in _BEGINNINGS:
        if beginning.startswith(magic):
            return name
    if path.suffix.lower() == ".pdf" and b"%PDF-" in beginning:  # other bytes may come before
        return PDF
    return HTML if _ENDINGS.get(path.suffix.lower()) == HTML else None


def is_convertible(path: Path) -> bool:
    """Return True if a file has the ending of a document that can be converted with what is installed."""
    name = _ENDINGS.get(path.suffix.lower())
    return name is not None and (name != PDF or find_spec("pypdfium2") is not None)


def is_document(beginning: bytes) -> bool:
    """Return True if a document begins with these bytes."""
    return beginning.startswith(tuple(magic for magic, _ in _BEGINNINGS))
