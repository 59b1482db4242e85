"""One reply, as a session asks for it, and the progress of reading its prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .sampler import Sampling

PARAGRAPH = "\n\n"  # between the texts of a turn

# a turn in the model's chat template, the beginning of one that the next goes on with, or a text to continue
Kind = Literal["chat", "read", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One reply to give; none after the beginning of a turn.

    content: texts (str) and text files (Path), in the order in which they are read
    question: what to have in mind while reading; None = nothing
    max_tokens: None = until the model ends its reply, or its trained context is full
    """

    content: tuple[str | Path, ...]
    kind: Kind
    question: str | None = None
    max_tokens: int | None = None
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of reading a prompt: tokens read of all its tokens, and cells used per head of the budget."""

    tokens_done: int
    tokens_total: int
    cells_used: int
    budget_cells: int


ProgressCallback = Callable[[Progress], None]
