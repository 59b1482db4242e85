"""The cache of Hugging Face's programs, into which `edgekv pull` downloads as well.

models--OWNER--MODEL/
    blobs/SHA256                contents, one file each
    snapshots/COMMIT/NAME       files of a commit: links to blobs, or plain files if the system has no links
    refs/main                   the commit that is the newest
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from edgekv.errors import ConfigError
from edgekv.models.names import is_model_file, split_of, tags_of

from .found import FoundModel

_PREFIX = "models--"


def cache_folder() -> Path:
    """Return the folder of the cache, by the environment variables that huggingface_hub reads."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return _expanded(os.environ[variable])
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return _expanded(home) / "hub"


def repo_folder(repo: str) -> Path:
    """Return the folder of a repository, OWNER/MODEL."""
    return cache_folder() / (_PREFIX + repo.replace("/", "--"))


def models() -> Iterator[FoundModel]:
    """Return the GGUF files of all repositories; of each file the newest commit in the cache."""
    for folder in sorted(cache_folder().glob(f"{_PREFIX}*")):
        repo = folder.name.removeprefix(_PREFIX).replace("--", "/")
        files: dict[str, Path] = {}
        for snapshot in _snapshots(folder):
            for path in sorted(snapshot.rglob("*.gguf")):
                name = path.relative_to(snapshot).as_posix()
                if is_model_file(name) and split_of(name)[0] == 1 and os.path.isfile(path):  # a link may lead nowhere
                    files.setdefault(name, path)
        for name, tag in tags_of(files).items():
            yield FoundModel("hf", repo, tag, name, files[name])


def remove(model: FoundModel) -> int:
    """Remove a model's file from the cache, and all links to it. Returns the freed bytes.

    Raises ConfigError for a file that several repositories share, because huggingface_hub counts its links.
    """
    folder = repo_folder(model.repo)
    blob = model.path.resolve()
    if blob.parent not in (folder.resolve() / "blobs", model.path.parent.resolve()):
        raise ConfigError(f"{model.name!r} lies in a store that repositories share; remove it with: hf cache rm")
    n_bytes = blob.stat().st_size
    for name in list((folder / "snapshots").rglob("*.gguf")):
        if name.resolve() == blob:
            name.unlink()
            _remove_empty(name.parent, up_to=folder / "snapshots")
    blob.unlink(missing_ok=True)
    if not any((folder / part).is_dir() and any((folder / part).iterdir()) for part in ("snapshots", "blobs")):
        shutil.rmtree(folder)
    return n_bytes


def _snapshots(folder: Path) -> list[Path]:
    """Return the commits of a repository: main, then the others from the newest on."""
    try:
        commit = (folder / "refs" / "main").read_text(errors="replace").strip()
    except OSError:
        commit = ""
    found = [path for path in folder.glob("snapshots/*") if os.path.isdir(path)]
    return sorted(found, key=lambda path: (path.name != commit, -path.stat().st_mtime, path.name))


def _remove_empty(folder: Path, up_to: Path) -> None:
    while folder != up_to and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _expanded(path: str | Path) -> Path:
    return Path(os.path.expandvars(path)).expanduser()
