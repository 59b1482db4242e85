"""The object `edgekv` of a body: fields of edgekv's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .body import Body

FocusPart = Annotated[str, Field(min_length=1, pattern=r"\S")]


class EdgekvParams(Body):
    """The object `edgekv`: fields of edgekv's own.

    focus: read with the last user message in mind, or with this question or the parts of one; None = as the server does
    coverage: a stream tells at its end what is kept of the conversation
    """

    focus: bool | str | Annotated[list[FocusPart], Field(min_length=1, max_length=16)] | None = None
    coverage: bool = False
    on_overflow: Literal["evict", "error"] = "evict"
