"""Look-up of a remote model, in a process of its own.

A plan measures the bytes that Python holds, and would count huggingface_hub and all that it imports. So a child asks
the hub, and leaves a skeleton: a file with the header of the model and its size, and holes in place of the weights. A
plan reads only this, so a remote model is planned as a local one is.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgekv.errors import ConfigError, DownloadError, EdgeKVError, ModelError
from edgekv.extras import has_interpreter
from edgekv.models.header import parse_header
from edgekv.models.names import ModelName
from edgekv.models.stream import Stream

from .client import Hub
from .hub_file import HubFile, choose

FETCH_BYTES = 2 << 20  # headers are as large as vocabularies: from 2 MiB to some 15 MiB
CODE = "import sys; sys.path[:] = {path!r}; from edgekv.hub.lookup import serve; serve()"


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on a hub, looked up.

    header         a temporary file for plans: the header, and holes in place of the weights
    fetched_bytes  bytes that were fetched for it
    """

    file: HubFile
    header: Path
    fetched_bytes: int


@contextlib.contextmanager
def look_up(name: str, ceiling_bytes: int) -> Iterator[RemoteModel]:
    """Yield the remote model of a name, [hf:]OWNER/MODEL[:QUANT], by its header alone. Its file goes with the block.

    ceiling_bytes: limit of the file that is chosen for a name without a quantisation (`choose`)

    Raises ModelNotFoundError, AmbiguousModelError, UnsupportedModelError and InvalidModelError for the hub's files,
    DownloadError if it does not answer, and ConfigError without the extra `hub`.
    """
    with tempfile.TemporaryDirectory(prefix="edgekv-hub-", ignore_cleanup_errors=True) as folder:
        yield _ask_child((name, folder, ceiling_bytes))


def _ask_child(request: tuple[str, str, int]) -> RemoteModel:
    if not has_interpreter():
        raise ConfigError(
            "a remote model is looked up by a Python interpreter, and this program has none; download its file in "
            "another way, and name that"
        )
    command = [sys.executable, "-c", CODE.format(path=sys.path)]
    # The child has a group of its own: Ctrl-C reaches this process alone, which ends the child.
    child = subprocess.run(
        command,
        input=pickle.dumps(request),
        stdout=subprocess.PIPE,
        check=False,
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # Windows alone has it
    )
    if child.returncode != 0:
        raise DownloadError(f"the process that asks the hub ended with status {child.returncode}; try again")
    answer = pickle.loads(child.stdout)
    if isinstance(answer, EdgeKVError):
        raise answer
    assert isinstance(answer, RemoteModel)
    return answer


def serve() -> None:
    """Serve one request in the child: it comes on standard input; a RemoteModel or an error goes to standard output."""
    answer: RemoteModel | EdgeKVError
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer = _look_up(*pickle.load(sys.stdin.buffer))
        except EdgeKVError as error:
            answer = error
    sys.stdout.buffer.write(pickle.dumps(answer))


def _look_up(name: str, folder: str, ceiling_bytes: int) -> RemoteModel:
    wanted = ModelName.parse(name)
    if wanted.source not in (None, "hf"):
        raise ConfigError(f"{name!r} is a name of {wanted.source}; write OWNER/MODEL or OWNER/MODEL:QUANT")
    hub = Hub()
    file = choose(hub.files(wanted.repo), wanted.repo, wanted.tag, ceiling_bytes)
    header = Path(folder, file.file_name)
    return RemoteModel(file, header, write_skeleton(hub, file, header))


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
