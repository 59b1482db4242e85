"""Models in the caches of other programs on this machine: Hugging Face, ollama and LM Studio.

They are used in place and never copied. Only the layout of the folders is read, so no package of these programs
is imported into the process that loads a model.
"""

from __future__ import annotations

from edgekv.errors import AmbiguousModelError
from edgekv.models.names import ModelName

from . import hugging_face, lm_studio, ollama
from .found import FoundModel

__all__ = ["FoundModel", "find_cached", "found_models"]


def found_models() -> list[FoundModel]:
    """Return all models in the caches. Unreadable files are left out."""
    return [model for cache in (hugging_face, ollama, lm_studio) for model in cache.models()]


def find_cached(name: str) -> FoundModel | None:
    """Return the cached model of a name, in any case of letters; None if there is none.

    A name may leave out its source, and its tag if that leaves one model; ollama's tag "latest" wins. Raises
    AmbiguousModelError if several files have the name.
    """
    wanted = ModelName.parse(name)
    matches = [model for model in found_models() if model.has_name(wanted)]
    if wanted.tag is None:
        matches = [model for model in matches if model.tag == "latest"] or matches
    if len({model.path.resolve() for model in matches}) > 1:
        raise AmbiguousModelError(f"{name!r} is several models; name one: {', '.join(model.name for model in matches)}")
    return matches[0] if matches else None
