"""A model in the cache of another program on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgekv.models.names import ModelName


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A GGUF file in the cache of another program.

    source     "hf", "ollama" or "lmstudio"
    repo, tag  the rest of its name: OWNER/MODEL and quantisation or file, or ollama's name and tag
    file_name  the file as its cache names it
    """

    source: str
    repo: str
    tag: str
    file_name: str
    path: Path

    @property
    def name(self) -> str:
        """Name that finds only this model."""
        return f"{self.source}:{self.repo}:{self.tag}"

    @property
    def file_bytes(self) -> int:
        return self.path.stat().st_size

    def has_name(self, wanted: ModelName) -> bool:
        """Return True if a name stands for this model. Capitals do not matter."""
        return (
            wanted.source in (None, self.source)
            and wanted.repo.casefold() == self.repo.casefold()
            and (wanted.tag is None or wanted.tag.casefold() in (self.tag.casefold(), self.file_name.casefold()))
        )
