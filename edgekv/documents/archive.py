"""Zip archives whose members are read as streams."""

from __future__ import annotations

import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote

from .report import DocumentError


class Archive:
    """An open zip archive."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._names = {*file.namelist()}
        self._alike = {_plain(name): name for name in self._names}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def found(self, reference: str) -> str | None:
        """Return the name of the member that a reference means, as it is written or with escapes; None = none."""
        for name in (reference, unquote(reference)):
            if name in self._names:
                return name
        return self._alike.get(_plain(unquote(reference)))

    @contextmanager
    def member(self, name: str) -> Iterator[BinaryIO]:
        """Yield a member. Raises DocumentError if it is missing, encrypted or damaged."""
        if name not in self._names:
            raise DocumentError(f"has no {name!r} in it; get it again, or save it anew")
        try:
            with self._file.open(name) as stream:
                yield cast(BinaryIO, stream)
        except (RuntimeError, NotImplementedError):  # a password, or a method of compression that is not known
            raise DocumentError(
                "is encrypted or packed in a way that is not read; save it without a password"
            ) from None
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise DocumentError(f"is damaged at {name!r} ({error}); get it again") from None


def _plain(name: str) -> str:
    """Return a name to compare by. Programs that write archives differ in case, forms of letters and encoding."""
    with suppress(UnicodeError):
        name = name.encode("cp437").decode()  # zipfile reads a name in UTF-8 so, if the archive does not say that it is
    return unicodedata.normalize("NFC", name.replace("\\", "/")).casefold()


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Yield an archive. Raises DocumentError for a file that is none."""
    try:
        file = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        raise DocumentError("is not a whole zip archive, as DOCX and EPUB are; get it again") from None
    with file:
        yield Archive(file)
