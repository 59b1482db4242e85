"""The question to read texts with, as callers give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from edgekv.errors import ConfigError

Focus: TypeAlias = bool | str | Sequence[str] | None


def question_to_read_with(focus: Focus, usual: str, *, able: bool, otherwise: bool) -> str | tuple[str, ...] | None:
    """Return the question to read with: the caller's own, perhaps in parts, or `usual`; None = none.

    focus: a question or its parts; True = `usual`, False = none, None = `usual` if `otherwise` is true
    able: the runtime has cells for a probe

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
    """Return the parts of a question. Raises ConfigError for a part that is no text or is empty."""
    parts = tuple(focus)
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise ConfigError(f"focus has the part {part!r}; give texts that are not empty")
    if not parts:
        raise ConfigError("focus has no parts; give some, or False to read without a question")
    return parts
