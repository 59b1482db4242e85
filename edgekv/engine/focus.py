"""The question that texts are read with, as callers give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from edgekv.errors import ConfigError

Focus: TypeAlias = bool | str | Sequence[str] | None


def question_to_read_with(focus: Focus, usual: str, *, able: bool, otherwise: bool) -> str | tuple[str, ...] | None:
    """The caller's own question, perhaps in parts, `usual`, or none.

    focus: a question or its parts; True = `usual`, False = none, None = `usual` where that is `otherwise` so
    able: whether the runtime has cells for a probe

    Raises ConfigError for a focus that the runtime has no cells for, and for parts that say nothing.
    """
    if focus and not able:
        raise ConfigError(f"focus={focus!r} needs a runtime opened with focus=True, which has cells for the probe")
    if isinstance(focus, str):
        return focus or None
    if focus is not None and not isinstance(focus, bool):
        return _parts(focus)
    return usual if (able and otherwise if focus is None else focus) else None


def _parts(focus: Sequence[str]) -> tuple[str, ...]:
    """The parts of a question, as given. Raises ConfigError for what is no text, or says nothing."""
    parts = tuple(focus)
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise ConfigError(f"focus has the part {part!r}; give texts that are not empty")
    if not parts:
        raise ConfigError("focus has no parts; give some, or False to read without a question")
    return parts
