"""Downloads from a hub into Hugging Face's cache: resumed, checked, and whole or not there at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from edgekv.errors import DownloadError, InvalidModelError
from edgekv.extras import needed
from edgekv.memory.sizes import format_size
from edgekv.models.caches import hugging_face

from .client import EXTRA, Hub
from .hub_file import HubFile

PIECE_BYTES = 1 << 20

Progress = Callable[[str, int, int], object]
"""Callback with the step, "downloading" or "checking", the bytes that are done, and the bytes of the file."""


def _no_progress(what: str, done: int, total: int) -> None:
    pass


def download(file: HubFile, progress: Progress = _no_progress) -> Path:
    """Download a file into Hugging Face's cache, unless it is there; returns its path.

    The file appears in the cache when its SHA-256 is the one that the hub states; a file that is there is checked, too.
    Until then its bytes are in a partial file, which an interruption leaves and the next call continues.
    A lost connection is opened again as long as it brings bytes.

    Raises DownloadError if the hub does not give the file, if there is no room for it, or if another process
    is downloading it; and InvalidModelError for wrong contents, which are deleted.
    """
    folder = hugging_face.repo_folder(file.repo)
    path = folder / "snapshots" / file.commit / file.path
    if _is_whole(path, file):
        _check(file, path, progress)
        return path
    hub = Hub()
    blob = folder / "blobs" / file.sha256
    lock = folder.parent / ".locks" / folder.name / f"{file.sha256}.lock"  # the same path as huggingface_hub's
    filelock = needed("filelock", EXTRA)
    try:
        for parent in (blob.parent, folder / "snapshots", lock.parent):
            parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock, timeout=0):
            if _is_whole(blob, file):
                _check(file, blob, progress)
            else:
                _fetch(hub, file, partial_path(file), progress)
                _check(file, partial_path(file), progress)
                os.replace(partial_path(file), blob)
        hub.link(file)
        if not path.is_symlink():
            blob.unlink()  # the system has no links, and huggingface_hub has made a copy
        return path
    except filelock.Timeout:
        raise DownloadError(f"another process is downloading {file.name!r}; wait until it has ended") from None
    except OSError as error:
        raise DownloadError(
            f"{file.name!r} cannot be stored in {str(folder)!r}: {error.strerror or error}; make room, or name another "
            "folder in HF_HUB_CACHE, then try again: what was downloaded stays"
        ) from error


def _is_whole(path: Path, file: HubFile) -> bool:
    return path.is_file() and path.stat().st_size == file.n_bytes


def partial_path(file: HubFile) -> Path:
    """Return the path of a file's bytes until they are complete and checked."""
    return hugging_face.repo_folder(file.repo) / "blobs" / f"{file.sha256}.incomplete"


def _fetch(hub: Hub, file: HubFile, partial: Path, progress: Progress) -> None:
    """Bring the partial file to the size of the whole one."""
    with partial.open("ab") as local:
        if local.tell() > file.n_bytes:
            local.truncate(0)
            local.seek(0)
        _check_room(file, partial, local.tell())
        for piece in hub.pieces(file, local.tell(), file.n_bytes):
            local.write(piece)
            progress("downloading", local.tell(), file.n_bytes)
        local.flush()
        os.fsync(local.fileno())


def _check_room(file: HubFile, partial: Path, n_done: int) -> None:
    free = shutil.disk_usage(partial.parent).free
    if free < file.n_bytes - n_done:
        raise DownloadError(
            f"{file.name!r} needs {format_size(file.n_bytes - n_done)}, but the disk of {str(partial.parent)!r} has "
            f"{format_size(free)} free; make room, or name another folder in HF_HUB_CACHE"
        )


def _check(file: HubFile, local_path: Path, progress: Progress) -> None:
    """Compare the digest of the whole partial file with that of the hub. Delete a wrong file."""
    digest = hashlib.sha256()
    done = 0
    with local_path.open("rb") as local:
        while piece := local.read(PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            progress("checking", done, file.n_bytes)
    if digest.hexdigest() != file.sha256:
        local_path.resolve().unlink()
        raise InvalidModelError(
            f"what was downloaded of {file.name!r} has the SHA-256 {digest.hexdigest()}, but the hub states "
            f"{file.sha256}; it is deleted: download it again"
        )
