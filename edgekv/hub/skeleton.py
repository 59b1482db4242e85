"""A local file with the header of a remote model and its size, and holes in place of the weights.

A plan reads only this, and no weights. So a remote model is planned as a local one is.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from edgekv.errors import DownloadError, ModelError
from edgekv.models.header import parse_header
from edgekv.models.stream import Stream

from .client import Hub
from .hub_file import HubFile

FETCH_BYTES = 2 << 20  # headers are as large as vocabularies: from 2 MiB to some 15 MiB


def write_skeleton(hub: Hub, file: HubFile, path: Path) -> int:
    """Write the skeleton of a remote file to `path`; returns the bytes that were fetched, at most FETCH_BYTES too many.

    Raises what `read_header` raises for a header, and DownloadError if it cannot be fetched or stored.
    """
    try:
        with path.open("w+b") as local:
            local.truncate(file.n_bytes)
            source = _Prefix(hub, file, local)
            header = parse_header(Stream(source, file.n_bytes))
            source.fetch_to(header.data_offset)
            return source.fetched
    except ModelError as error:
        if isinstance(error, DownloadError):
            raise
        raise type(error)(f"{file.name!r}: {error}") from None
    except OSError as error:
        raise DownloadError(
            f"{str(path)!r}, a temporary file for the header, cannot be written: {error.strerror}; make room, or name "
            "another folder in TMPDIR"
        ) from error


class _Prefix:
    """Reads a remote file forwards. Fetched bytes are written to a local file, at the same place."""

    def __init__(self, hub: Hub, file: HubFile, local: BinaryIO) -> None:
        self._hub, self._file, self._local = hub, file, local
        self.fetched = 0

    def read(self, n_bytes: int) -> bytes:
        self.fetch_to(self._local.tell() + n_bytes)
        return self._local.read(n_bytes)

    def seek(self, offset: int, whence: int) -> int:
        return self._local.seek(offset, whence)

    def fetch_to(self, stop: int) -> None:
        """Fetch all bytes before `stop`, in requests of FETCH_BYTES."""
        position = self._local.tell()
        while self.fetched < stop:
            self._local.seek(self.fetched)
            upto = min(self.fetched + FETCH_BYTES, self._file.n_bytes)
            for piece in self._hub.pieces(self._file, self.fetched, upto):
                self.fetched += self._local.write(piece)
        self._local.seek(position)
