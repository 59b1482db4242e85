"""Files of a repository on a hub, and the file that a name stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from edgekv.errors import AmbiguousModelError, ModelNotFoundError, UnsupportedModelError
from edgekv.memory.sizes import format_size
from edgekv.models.names import is_model_file, quant_of, split_of

PREFERRED = "Q4_K_M"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository, OWNER/MODEL, at one commit.

    path    in the repository
    sha256  digest (hex) that the hub states
    """

    repo: str
    commit: str
    path: str
    n_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def name(self) -> str:
        """Name that finds this file once it was downloaded, among all files of the repository."""
        return f"hf:{self.repo}:{self.path}"


def choose(files: Sequence[HubFile], repo: str, tag: str | None, ceiling_bytes: int) -> HubFile:
    """Return the file of a tag: a quantisation or the name of a file, in any case of letters.

    Without a tag it is Q4_K_M if that is one file, else the largest file below the ceiling, else the smallest.
    Raises ModelNotFoundError for a tag that is not there, AmbiguousModelError if several files have it, and
    UnsupportedModelError for a model that is split into several files.
    """
    models = [file for file in files if is_model_file(file.path) and split_of(file.path)[0] == 1]
    if not models:
        raise ModelNotFoundError(
            f"{repo!r} has no GGUF model whose SHA-256 the hub states; search the hub for a repository that has "
            "one, often with GGUF in its name"
        )
    whole = [file for file in models if split_of(file.path)[1] == 1]
    if tag is None:
        preferred = [file for file in whole if quant_of(file.path) == PREFERRED]
        chosen = preferred if len(preferred) == 1 else _by_size(whole, ceiling_bytes) or models
    else:
        chosen = [file for file in models if _has_tag(file, tag.casefold())]
    if not chosen:
        raise ModelNotFoundError(f"{repo!r} has no {tag!r}; there are: {_listed(models)}")
    if len(chosen) > 1 and tag is not None:
        raise AmbiguousModelError(
            f"{tag!r} is several files of {repo!r}; name one: {', '.join(f'{repo}:{file.path}' for file in chosen)}"
        )
    n_parts = split_of(chosen[0].path)[1]
    if n_parts > 1:
        others = f"choose another: {_listed(whole)}" if whole else "choose a smaller model"
        raise UnsupportedModelError(
            f"{chosen[0].path!r} of {repo!r} is split into {n_parts} files, but edgekv reads one; {others}, or "
            "download all parts and merge them with 'llama-gguf-split --merge FIRST_FILE MERGED_FILE'"
        )
    return chosen[0]


def _has_tag(file: HubFile, tag: str) -> bool:
    return tag in ((quant_of(file.path) or "").casefold(), file.path.casefold(), file.file_name.casefold())


def _by_size(files: Iterable[HubFile], ceiling_bytes: int) -> list[HubFile]:
    """Return the largest file below the ceiling, else the smallest one."""
    by_size = sorted(files, key=lambda file: (file.n_bytes, file.path))
    return [file for file in by_size if file.n_bytes < ceiling_bytes][-1:] or by_size[:1]


def _listed(files: Iterable[HubFile]) -> str:
    """List files as tags with sizes, from the smallest on; split files have no sizes here."""
    return ", ".join(
        f"{quant_of(file.path) or file.path} ({format_size(file.n_bytes) if split_of(file.path)[1] == 1 else 'split'})"
        for file in sorted(files, key=lambda file: (file.n_bytes, file.path))
    )
