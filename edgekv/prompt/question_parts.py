"""The parts of a question, each of which asks for something of its own."""

from __future__ import annotations

import re
from itertools import pairwise

# with what closes a quotation or a bracket; the full-width mark and the Arabic one need no space after them
_END = re.compile("[?]+[\"'\u201d\u2019\u00bb)\\]]*(?=\\s)|[\uff1f\u061f]+")


def parts_of(question: str) -> tuple[str, ...]:
    """The parts of a question, which joined are the question.

    A part ends with a question mark. What stands before it belongs to it, and what stands after the last one to the
    last. So a text with one question, or none, is one part.
    """
    ends = [found.end() for found in _END.finditer(question)]
    last = question[ends[-1] :] if ends else ""
    if not re.search("[?\uff1f\u061f]", last):  # what follows the last question asks for nothing
        ends = ends[:-1]
    return tuple(question[first:end] for first, end in pairwise([0, *ends, len(question)]))
