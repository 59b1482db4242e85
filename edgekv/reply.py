"""What a session asks for: one reply, and how far the reading for it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .sampler import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One reply to give.

    content: texts (str) and text files (Path), in the order in which they are read
    chat: a turn in the model's chat template, or a text to continue as it stands
    question: what to have in mind while reading; None = nothing
    max_tokens: None = until the model ends its reply, or its trained context is full
    """

    content: tuple[str | Path, ...]
    chat: bool
    question: str | None = None
    max_tokens: int | None = None
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the reading of a prompt is: tokens read of all, and cells used per head of the budget."""

    tokens_done: int
    tokens_total: int
    cells_used: int
    budget_cells: int


ProgressCallback = Callable[[Progress], None]
