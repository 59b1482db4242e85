"""The models of ollama. A manifest lists the blobs of a model; one of them is its GGUF file.

manifests/HOST/NAMESPACE/NAME/TAG    JSON: {"layers": [{"mediaType": ..., "digest": "sha256:..."}, ...]}
blobs/sha256-HEX
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from .found import FoundModel

_DOMAIN, _NAMESPACE = ".ollama.ai", "library"  # ollama's own, which its names leave out
_MODEL = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"
_SERVICE = Path("/usr/share/ollama/.ollama/models")  # models of the system service on Linux
_MAX_MANIFEST_BYTES = 1 << 20


def folders() -> list[Path]:
    """Return ollama's folders of models: OLLAMA_MODELS, or else the user's and that of the system service."""
    named = os.environ.get("OLLAMA_MODELS")
    return [Path(named).expanduser()] if named else [Path("~/.ollama/models").expanduser(), _SERVICE]


def models() -> Iterator[FoundModel]:
    """Return the models that are one GGUF file in the cache, and need no adapter."""
    for folder in folders():
        manifests = folder / "manifests"
        for manifest in sorted(manifests.glob("*/*/**/*")):
            blob = _blob(folder, manifest)
            if blob is not None:
                *repo, tag = manifest.relative_to(manifests).parts
                yield FoundModel("ollama", _repo(repo), tag, blob.name, blob)


def _repo(parts: list[str]) -> str:
    """Return the name as ollama shows it, without the parts that it adds by itself."""
    shortened = parts[1:] if parts[0].endswith(_DOMAIN) else parts
    return "/".join(shortened[1:] if shortened[0] == _NAMESPACE and len(shortened) > 1 else shortened)


def _blob(folder: Path, manifest: Path) -> Path | None:
    """Return the GGUF file that a manifest names; None for all other models."""
    try:
        if not os.path.isfile(manifest) or manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            return None
        layers = json.loads(manifest.read_bytes())["layers"]
        kinds = [layer["mediaType"] for layer in layers]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == _MODEL]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if len(digests) != 1 or _ADAPTER in kinds:
        return None
    blob = folder / "blobs" / digests[0].replace(":", "-")
    return blob if os.path.isfile(blob) else None
