"""Documents that are zip archives: EPUB, and DOCX of Word."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from .report import DocumentError, Report


class Archive:
    """A zip archive whose members are read as streams."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._names = {*file.namelist()}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @contextmanager
    def member(self, name: str) -> Iterator[BinaryIO]:
        """Yield a member. Raises DocumentError if it is missing, encrypted or damaged."""
        if name not in self._names:
            raise DocumentError(f"has no {name!r} in it; get it again, or save it anew")
        try:
            with self._file.open(name) as stream:
                yield cast(BinaryIO, stream)
        except (RuntimeError, NotImplementedError):  # a password, or a method of compression that is not known
            raise DocumentError("is encrypted or packed in a way that is not read; save it without a password") from None
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise DocumentError(f"is damaged at {name!r} ({error}); get it again") from None


def text_of(path: Path, report: Report) -> Iterator[str]:
    """Yield the text of an archive that is a document."""
    from . import docx, epub

    try:
        file = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        raise DocumentError("is not a whole zip archive, as DOCX and EPUB are; get it again") from None
    with file:
        archive = Archive(file)
        for kind in (epub, docx):
            if kind.MARK in archive:
                yield from kind.text_of(archive, report)
                return
    raise DocumentError("is a zip archive, and neither DOCX nor EPUB; unpack it and name its files, or save it as one")
