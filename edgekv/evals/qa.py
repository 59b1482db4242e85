"""Questions about texts of the user's own: a file of JSON lines, each with documents, a question and its answers."""

from __future__ import annotations

import functools
import json
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekv.errors import InputError
from edgekv.prompt.text import PARAGRAPH

from .document import Document, Question

REPLY_TOKENS = 48
_ARTICLES = frozenset({"a", "an", "the"})
EXAMPLE = '{"documents": ["..."], "question": "...", "answers": ["..."]}'


@dataclass(frozen=True)
class OpenQuestion(Question):
    """A question with one answer in several spellings. The first one is the right reply, word for word."""

    max_tokens: int = REPLY_TOKENS

    @property
    def right(self) -> str:
        """The first spelling."""
        return self.answers[0]

    def score(self, reply: str) -> float:
        """Return 1 if the reply has one of the spellings, else 0."""
        return float(any(holds(reply, answer) for answer in self.answers))

    def f1(self, reply: str) -> float:
        """The largest F1 of the reply with a spelling."""
        return max(word_f1(reply, answer) for answer in self.answers)


@dataclass(frozen=True)
class Item:
    """A text, and the question about it."""

    text: str
    question: OpenQuestion

    @property
    def document(self) -> Document:
        """The item as a document, which other tasks have."""
        return Document(self.text, (self.question,))


@functools.lru_cache(maxsize=1)
def read_items(path: Path) -> list[Item]:
    """Return the items of a file, in its order. Blank lines and further fields are ignored.

    Raises InputError for a file that cannot be read or holds no item; it names line, field and remedy.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            items: list[Item] = []
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    items.append(_item(line, f"line {number} of {path}", items[-1].text if items else None))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give a file of JSON lines") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}); convert it to UTF-8") from error
    if not items:
        raise InputError(f"{path} holds no question; give a file with lines such as {EXAMPLE}")
    return items


def _item(line: str, where: str, before: str | None) -> Item:
    """Return the item of a line. before: the text of the line before, which one without documents asks about"""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({error}); write one object a line, such as {EXAMPLE}") from error
    if not isinstance(value, dict):
        raise InputError(f"{where} is {_kind(value)}; write one object a line, such as {EXAMPLE}")
    if "documents" not in value and before is not None:
        value = {"documents": before, **value}
    documents, questions, answers = (
        list(_texts(value, name, where, several=several))
        for name, several in (("documents", True), ("question", False), ("answers", True))
    )
    for answer in answers:
        if not words(answer):
            raise InputError(
                f"{where}: {answer!r} in 'answers' has only articles and punctuation, which do not count; "
                "give an answer with another word"
            )
    return Item(PARAGRAPH.join(documents), OpenQuestion(questions[0], tuple(answers)))


def _texts(item: dict[str, Any], name: str, where: str, *, several: bool) -> Iterator[str]:
    """Yield the texts of a field; a blank text is an error."""
    if name not in item:
        raise InputError(f"{where} has no {name!r}; give each line the fields of {EXAMPLE}")
    value = item[name]
    if several and value == []:
        raise InputError(f"{where}: {name!r} is an empty list; give at least one text")
    wanted = "a text or a list of texts" if several else "a text"
    for text in value if several and isinstance(value, list) else [value]:
        if not isinstance(text, str):
            raise InputError(f"{where}: {name!r} holds {_kind(text)}; give {wanted}")
        if not text.strip():
            raise InputError(f"{where}: {name!r} holds a blank text; give one with words in it, or leave it out")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InputError(f"{where}: {name!r} holds half a character (a lone surrogate); write the whole one")
        yield text


def _kind(value: object) -> str:
    """Return the name of a value's type in JSON."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
    return names.get(type(value), "a number")


def words(text: str) -> list[str]:
    """Return the words of a text, without case, punctuation and articles (SQuAD, arXiv:1606.05250)."""
    plain = (char for char in text.lower() if char not in string.punctuation and unicodedata.category(char)[0] != "P")
    return [word for word in "".join(plain).split() if word not in _ARTICLES]


def holds(reply: str, answer: str) -> bool:
    """Return True if a reply says an answer: its words, next to each other."""
    said, wanted = (f" {' '.join(words(text))} " for text in (reply, answer))
    return wanted in said


def word_f1(reply: str, answer: str) -> float:
    """Return F1, the harmonic mean of precision and recall of the reply's words."""
    said, wanted = Counter(words(reply)), Counter(words(answer))
    n_common = sum((said & wanted).values())
    return 2 * n_common / (sum(said.values()) + sum(wanted.values())) if n_common else 0.0
