"""Look-up of a remote model, in a process of its own.

A plan measures the bytes that Python holds, and would count huggingface_hub and all that it imports. So a child asks
the hub, and leaves a file that this process plans.
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

from edgekv.errors import ConfigError, DownloadError, EdgeKVError
from edgekv.models.names import ModelName

from .hub_file import HubFile, choose

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
    DownloadError if it does not answer, and ConfigError without the extra edgekv[hub].
    """
    with tempfile.TemporaryDirectory(prefix="edgekv-hub-", ignore_cleanup_errors=True) as folder:
        yield _ask_child((name, folder, ceiling_bytes))


def _ask_child(request: tuple[str, str, int]) -> RemoteModel:
    if getattr(sys, "frozen", False) or not sys.executable:
        raise ConfigError("a remote model is looked up by a Python interpreter, and this program has none; download it")
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
    from .client import Hub
    from .skeleton import write_skeleton

    wanted = ModelName.parse(name)
    if wanted.source not in (None, "hf"):
        raise ConfigError(f"{name!r} is a name of {wanted.source}; write OWNER/MODEL or OWNER/MODEL:QUANT")
    hub = Hub()
    file = choose(hub.files(wanted.repo), wanted.repo, wanted.tag, ceiling_bytes)
    header = Path(folder, file.file_name)
    return RemoteModel(file, header, write_skeleton(hub, file, header))
