"""Names of models, such as `hf:OWNER/MODEL:Q4_K_M` or `ollama:llama3.2:1b`, and the parts of file names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

SOURCES = ("hf", "ollama", "lmstudio")

_QUANT = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|FP?16|FP?32|MXFP4\w*))(?=$|[-.])", re.IGNORECASE)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
# Words in names of files that are parts of models.
_NO_MODELS = ("mmproj", "imatrix")


@dataclass(frozen=True, slots=True)
class ModelName:
    """SOURCE:REPO:TAG. Source and tag may be left out. A tag is a quantisation, a file, or ollama's tag."""

    source: str | None
    repo: str
    tag: str | None

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Parse a name. Every text is a name."""
        source, colon, rest = text.partition(":")
        if not colon or source not in SOURCES:
            source, rest = "", text
        repo, _, tag = rest.partition(":")
        return cls(source or None, repo, tag or None)

    def __str__(self) -> str:
        return ":".join(part for part in (self.source, self.repo, self.tag) if part)


def quant_of(file_name: str) -> str | None:
    """Return the quantisation in the name of a GGUF file, such as "Q4_K_M", in capitals; None if it has none."""
    found = _QUANT.findall(_SPLIT.sub("", PurePosixPath(file_name).stem))
    return found[-1].upper() if found else None


def split_of(file_name: str) -> tuple[int, int]:
    """Return which part of how many a GGUF file is, by its name; (1, 1) for a whole model."""
    found = _SPLIT.search(PurePosixPath(file_name).stem)
    return (int(found[1]), int(found[2])) if found else (1, 1)


def is_model_file(file_name: str) -> bool:
    """Return True if a file may be a GGUF model, or a part of a split one. Image projectors are not models."""
    name = PurePosixPath(file_name).name.lower()
    return name.endswith(".gguf") and not any(word in name for word in _NO_MODELS)


def tags_of(file_names: Iterable[str]) -> dict[str, str]:
    """Return a tag for each file of a repository: its quantisation if no other file has it, else its whole name."""
    quants = {name: quant_of(name) for name in file_names}
    count = Counter(quants.values())
    return {name: quant if quant and count[quant] == 1 else name for name, quant in quants.items()}
