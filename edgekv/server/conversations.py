"""Conversations of the page in a folder of the server's, where its owner allows that: a file of JSON each.

Whoever may ask the server sees all of them, and the last one to write a conversation wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
from pydantic import ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edgekv.api.api_errors import RETRY_S, ApiError
from edgekv.api.body import Body
from edgekv.errors import SessionFileError
from edgekv.store import shared_files
from edgekv.store.atomic_write import atomic_write

from .read_body import read_body
from .state import state_of

PATH = "/conversations"
MOST = 10_000  # conversations of a folder
PIECE_BYTES = 1 << 16
_ID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)


class Conversation(Body):
    """A conversation, as the page writes it. Further fields are kept as they are. at: milliseconds since 1970"""

    model_config = ConfigDict(extra="allow")

    id: str
    title: str = ""
    at: int
    messages: list[dict[str, Any]]


async def listed(request: Request) -> Response:
    """Return all conversations, each as a line of JSON. Raises ApiError."""
    files = await anyio.to_thread.run_sync(_files, _folder(request))
    return StreamingResponse(_lines(files), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"})


async def kept(request: Request) -> Response:
    """Keep a conversation, in the place of the one with its id. Raises ApiError."""
    state, path = state_of(request), _path(request)
    body = await read_body(request, Conversation, state.settings, state.memory)
    if body.id != path.stem:
        raise ApiError(400, "invalid_value", "id is not that of the address; write the same in both", param="id")
    text = body.model_dump_json().encode()  # a line: JSON writes a line's end within texts as two characters
    del body  # its values take far more memory than the text, which alone is counted
    with state.memory.reserved(len(text)):
        await anyio.to_thread.run_sync(_write, path, text)
    return JSONResponse({"id": path.stem})


async def removed(request: Request) -> Response:
    """Remove a conversation, if it is there. Raises ApiError."""
    path = _path(request)
    await anyio.to_thread.run_sync(_remove, path)
    return JSONResponse({"id": path.stem})


def _folder(request: Request) -> Path:
    folder = state_of(request).settings.conversations_dir
    if folder is None:
        raise ApiError(404, "not_found", "this server keeps no conversations; start it with --conversations DIR")
    return folder


def _path(request: Request) -> Path:
    name = request.path_params["id"]
    if not _ID.fullmatch(name):
        raise ApiError(400, "invalid_value", "id must be 1 to 64 letters, digits or dashes", param="id")
    return _folder(request) / f"{name}.json"


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix == ".json" and _ID.fullmatch(path.stem)]
    except OSError as error:
        raise _no_room(error) from error


def _lines(files: list[Path]) -> Iterator[bytes]:
    """Yield the files' texts. A file that cannot be read is left out, or ends early, and its line is no JSON."""
    for path in files:
        try:
            with open(path, "rb", opener=shared_files.opener) as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except OSError:
            pass
        yield b"\n"


def _write(path: Path, text: bytes) -> None:
    if not path.exists() and len(_files(path.parent)) >= MOST:
        raise ApiError(409, "no_room", f"{MOST} conversations are kept, and no more can be; delete some")
    try:
        with atomic_write(path) as file:
            file.write(text)
    except (OSError, SessionFileError) as error:
        raise _no_room(error) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: Exception) -> ApiError:
    why = getattr(error, "strerror", None) or "its folder is no folder of files"
    return ApiError(503, "no_room", f"the server's disk does not take it: {why}", retry_after_s=RETRY_S)


routes = [
    Route(PATH, listed, methods=["GET"]),
    Route(PATH + "/{id}", kept, methods=["PUT"]),
    Route(PATH + "/{id}", removed, methods=["DELETE"]),
]
