"""Prompts of texts of any length, tokenised piece by piece: memory does not grow with them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgekv.binding.model import Model
from edgekv.documents.text_file import read_text
from edgekv.errors import InputError
from edgekv.store.log import TEMPLATE
from edgekv.store.temp_array import WINDOW, TempArray

PARAGRAPH = "\n\n"  # separates the texts of a turn
WITHIN = ""  # separates nothing: the content goes on with the last text of the turn


class Markup(str):
    """A text within a content that the template writes, such as the signs around a call: it may hold control tokens."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a prompt: texts, or tokens. special: names of control tokens in the texts are these tokens"""

    role: str
    sources: Sequence[str | os.PathLike[str]] = ()
    special: bool = False
    ids: Iterable[int] | None = None


@dataclass(frozen=True, slots=True)
class _StoredTokens:
    """The tokens [start, stop) of an array on the disk."""

    array: TempArray
    reading: threading.Lock  # several sessions may read one history
    start: int
    stop: int

    def __iter__(self) -> Iterator[int]:
        for first in range(self.start, self.stop, WINDOW):
            with self.reading:
                some = self.array.read(first, min(self.stop, first + WINDOW))
            yield from some.tolist()


class Prompt:
    """A prompt of parts, each a text or a text file, that can be tokenised again and again.

    Template parts and raw ones may hold control tokens; content never becomes a marker (`binding.markers`), whatever it
    says.
    """

    def __init__(self, model: Model, *, begin: bool = False) -> None:
        """Make an empty prompt. `begin` starts with the model's first token, if it wants one."""
        self._model = model
        self._begin = begin
        self._ends = False
        self._parts: list[_Part] = []

    def template(self, text: str) -> Prompt:
        """Add text that may hold control tokens."""
        return self._add(_Part(TEMPLATE, (text,), special=True))

    def raw(self, *sources: str | os.PathLike[str]) -> Prompt:
        """Add texts and text files of a caller who writes the whole prompt, control tokens too."""
        return self._add(_Part("text", sources, special=True))

    def content(self, *sources: str | os.PathLike[str], role: str = "user") -> Prompt:
        """Add texts (str) and text files (Path) as one run of content of a role (`store.log.ROLES`)."""
        return self._add(_Part(role, sources))

    def ids(self, tokens: Sequence[int], role: str) -> Prompt:
        """Add tokens."""
        return self._add(_Part(role, ids=tokens))

    def end(self) -> Prompt:
        """End with the model's last token, if it wants one. A reply follows."""
        self._ends = True
        return self

    def stored(self, array: TempArray) -> Prompt:
        """Return this prompt with its tokens in an empty array on the disk, so that they are made once.

        Raises InputError as `tokens` does, and SessionFileError if the disk is full.
        """
        stored, reading = self._emptied(), threading.Lock()
        for i, part in enumerate(self._parts):
            start, tokens = len(array), iter(self._tokens_of(i))
            while some := list(itertools.islice(tokens, WINDOW)):
                array.make_room(len(some))
                array.append(some)
            stored._add(_Part(part.role, ids=_StoredTokens(array, reading, start, len(array))))
        return stored

    def replaced(self, tokens: Mapping[int, Sequence[int]]) -> Prompt:
        """Return this prompt with other tokens for some of its parts, by their numbers from 0 on."""
        prompt = self._emptied()
        for i, part in enumerate(self._parts):
            prompt._add(_Part(part.role, ids=tokens[i]) if i in tokens else part)
        return prompt

    def _emptied(self) -> Prompt:
        prompt = Prompt(self._model, begin=self._begin)
        prompt._ends = self._ends
        return prompt

    def numbers(self, role: str) -> list[int]:
        """Return the numbers of the parts of a role, from 0 on."""
        return [i for i, part in enumerate(self._parts) if part.role == role]

    def _add(self, part: _Part) -> Prompt:
        self._parts.append(part)
        return self

    def tokens(self, mark: Callable[[int, str], None] | None = None) -> Iterator[int]:
        """Yield the prompt's tokens, made as they are taken. Raises InputError for a file that is not text.

        mark: called before the first token of each part, with the number of tokens before it and its role
        """
        n_before, previous = 0, -1
        for role, tokens in self._runs():
            if mark is not None:
                mark(n_before, role)
            for previous in tokens:
                n_before += 1
                yield previous
        if self._ends and (previous,) != self._model.last:
            if mark is not None:
                mark(n_before, TEMPLATE)
            yield from self._model.last

    def _runs(self) -> Iterator[tuple[str, Iterable[int]]]:
        """Yield the role and the tokens of each part, after the model's first tokens."""
        if self._begin:
            yield TEMPLATE, self._model.first
        for i, part in enumerate(self._parts):
            yield part.role, self._tokens_of(i)

    def _tokens_of(self, i: int) -> Iterable[int]:
        part = self._parts[i]
        if part.ids is not None:
            return part.ids
        tokenizer = self._model.tokenizer
        space_prefix = tokenizer.adds_space and self._is_first_text(i)
        runs = itertools.groupby(part.sources, lambda source: part.special or isinstance(source, Markup))
        tokens = itertools.chain.from_iterable(
            tokenizer.tokens(_pieces(run), special=special, space_prefix=space_prefix and n == 0)
            for n, (special, run) in enumerate(runs)
        )
        if i == 0 and self._begin and part.special:  # a raw prompt may begin with the model's first token by its name
            return (token for n, token in enumerate(tokens) if n > 0 or (token,) != self._model.first)
        return tokens

    def _is_first_text(self, i: int) -> bool:
        """Return True if part i is the first text of the prompt, or follows a token of the template that has a name."""
        if i == 0:
            return self._begin
        before = self._parts[i - 1]
        return before.special and self._model.ends_in_name(str(before.sources[-1]))

    def text(self) -> str:
        """Return the prompt's text, with the names of control tokens."""
        return "".join(map(self._text_of, self._parts))

    def _text_of(self, part: _Part) -> str:
        if part.ids is None:
            return "".join(_pieces(part.sources))
        return b"".join(self._model.piece(token, special=True) for token in part.ids).decode(errors="replace")

    def count(self) -> int:
        """Return the number of the prompt's tokens; reads every file once. Raises InputError if there is none."""
        n_tokens = sum(1 for _ in self.tokens())
        if n_tokens == 0:
            # llama.cpp drops characters that the vocabulary cannot spell, and would abort if nothing was fed
            raise InputError("nothing of the prompt is in the model's vocabulary; choose another model or prompt")
        return n_tokens


def _pieces(sources: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    for source in sources:
        if isinstance(source, str):
            yield source
        else:
            yield from read_text(source)
