"""Parts of a question, each of which asks for something of its own."""

from __future__ import annotations

import re
from itertools import pairwise

# A mark, and the end of a quotation or a bracket. The full-width and Arabic marks need no space after them.
_END = re.compile("[?]+[\"'\u201d\u2019\u00bb)\\]]*(?=\\s)|[\uff1f\u061f]+")


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
