"""The question to read texts with, as callers give it, and its parts, each of which asks for something of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from edgekv.errors import ConfigError

Focus: TypeAlias = bool | str | Sequence[str] | None

# A mark, and the end of a quotation or a bracket. The full-width and Arabic marks need no space after them.
_END = re.compile("[?]+[\"'\u201d\u2019\u00bb)\\]]*(?=\\s)|[\uff1f\u061f]+")


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
        return _given_parts(focus)
    return usual if (able and otherwise if focus is None else focus) else None


def _given_parts(focus: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a question. Raises ConfigError for a part that is no text or is empty."""
    parts = tuple(focus)
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise ConfigError(f"focus has the part {part!r}; give texts that are not empty")
    if not parts:
        raise ConfigError("focus has no parts; give some, or False to read without a question")
    return parts


def parts_of(question: str) -> tuple[str, ...]:
    """Return the parts of a question, which joined are the question.

    A part ends with a question mark. The text before it belongs to it, and the text after the last mark to the
    last part. So a text with one question, or none, is one part.
    """
    ends = [found.end() for found in _END.finditer(question)]
    last = question[ends[-1] :] if ends else ""
    if not re.search("[?\uff1f\u061f]", last):  # the text after the last question asks for nothing
        ends = ends[:-1]
    return tuple(question[first:end] for first, end in pairwise([0, *ends, len(question)]))
