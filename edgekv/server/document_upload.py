"""POST /documents: a document comes as bytes, and its text goes back. Pages attach documents so."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from edgekv.api.api_errors import ApiError
from edgekv.api.server_settings import TEXT_COPIES
from edgekv.documents.conversion import Limits, convert
from edgekv.documents.formats import format_of
from edgekv.documents.text_file import read_text
from edgekv.errors import InputError
from edgekv.memory.sizes import MIB, format_size

from .state import ServerState, state_of
from .streaming import BudgetedResponse

PATH = "/documents"
UPLOAD_BYTES = 64 * MIB  # it lies on the disk
NAME_CHARS = 200

LOOK_S = 0.1  # between two looks at whether the conversion before has ended

_converting = threading.Lock()  # one at a time takes a process of up to 256 MiB, which the ceiling does not count


async def upload(request: Request) -> Response:
    """Return {"name", "text", "notes"} of a document; `?name=` is its file's name. Raises ApiError and EdgeKVError.

    The text is at most as long as a request may be. notes: what a reader should know, such as pages without text
    """
    state = state_of(request)
    name = Path(request.query_params.get("name", "document")).name[:NAME_CHARS] or "document"
    with tempfile.TemporaryDirectory(prefix="edgekv-", dir=state.settings.swap_dir) as folder:
        path = Path(folder, "document").with_suffix(_suffix(name))
        await _receive(request, path, state)
        while not _converting.acquire(blocking=False):  # a waiting thread would be one less for others
            await anyio.sleep(LOOK_S)
        try:
            found = await anyio.to_thread.run_sync(_converted, path, name, state)
        finally:
            _converting.release()
    return BudgetedResponse(found, state.memory)


def _suffix(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return suffix if suffix.isascii() and suffix[1:].isalnum() and len(suffix) < 10 else ""


async def _receive(request: Request, path: Path, state: ServerState) -> None:
    """Write the body to a file. Raises ApiError, at once for one that is announced as too large."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > UPLOAD_BYTES:
        raise _too_large()
    try:
        with anyio.fail_after(state.settings.request_s), path.open("wb") as file:
            async for piece in request.stream():
                if file.tell() + len(piece) > UPLOAD_BYTES:
                    raise _too_large()
                await anyio.to_thread.run_sync(file.write, piece)
    except TimeoutError:
        raise ApiError(408, "timeout", f"the document did not come within {state.settings.request_s:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "disconnected", "the document did not come to its end") from None
    except OSError as error:
        raise ApiError(
            503, "no_room", f"the document cannot be kept while it is read: {error.strerror or error}"
        ) from error


def _too_large() -> ApiError:
    what = f"the document has more than {format_size(UPLOAD_BYTES)}; send less, or its text"
    return ApiError(413, "request_too_large", what)


def _converted(path: Path, name: str, state: ServerState) -> dict[str, Any]:
    """Return the reply for a file. Raises ApiError and InputError, which call it by its name."""
    most, notes = state.settings.max_body, list[str]()
    with state.memory.reserved(TEXT_COPIES * most):
        try:
            kind = format_of(path)
            if kind is None:
                pieces = read_text(path, notes.append)
            else:
                pieces = convert(path, kind, Limits(text_bytes=most), notes.append)
            parts, n_chars = [], 0
            for piece in pieces:
                parts.append(piece)
                n_chars += len(piece)
                if n_chars > most:
                    raise InputError(f"{path} has more than {format_size(most)} of text; attach less")
        except InputError as error:
            raise InputError(str(error).replace(str(path), name)) from error
        return {"name": name, "text": "".join(parts), "notes": [note.replace(str(path), name) for note in notes]}


routes = [Route(PATH, upload, methods=["POST"])]
