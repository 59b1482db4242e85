"""A text with questions about it whose answers are known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """Something to ask, and the strings that a right reply holds."""

    text: str
    answers: tuple[str, ...]
    max_tokens: int = 24

    @property
    def right(self) -> str:
        """A right reply, word for word: all answers in their order."""
        return ", ".join(self.answers)

    def score(self, reply: str) -> float:
        """Share of the answers that the reply holds, in any case: the string match of RULER (arXiv:2404.06654)."""
        said = reply.lower()
        return sum(answer.lower() in said for answer in self.answers) / len(self.answers)


@dataclass(frozen=True)
class Document:
    """A text, and the questions about it."""

    text: str
    questions: tuple[Question, ...]
