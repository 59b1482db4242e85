"""Texts of any length to tokens: llama.cpp's tokenizer reads them piece by piece."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from .markers import Markers

CHUNK_CHARS = 1 << 12  # a chunk takes some 60 bytes a character while it is tokenized

# A gap between two words: pre-tokenisers of nearly every family cut here, so tokens do not reach across.
_WORD_GAP = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")


class Tokenizer:
    """The only caller of llama.cpp's tokenizer.

    A text is cut between two words about every CHUNK_CHARS characters. A text without such a gap is cut all the same,
    but not within the name of a token, and the tokens around that cut may differ from those of the whole text.

    native: the tokens of a text, and whether names of control tokens are read as these tokens
    names: the names of all tokens that llama.cpp finds by their names
    adds_space: the vocabulary puts a space before a text
    """

    def __init__(
        self,
        native: Callable[[str, bool], list[int]],
        markers: Markers,
        names: Callable[[], Iterable[str]],
        *,
        adds_space: bool,
    ) -> None:
        self._native = native
        self._markers = markers
        self._all_names = names
        self.adds_space = adds_space

    def tokens(self, pieces: Iterable[str], *, special: bool = False, space_prefix: bool = False) -> Iterator[int]:
        """Yield the tokens of a text that comes in pieces, the same as of the whole text.

        special: read the names of control tokens as these tokens; otherwise nothing becomes a marker
        space_prefix: put a space before the text, if the vocabulary does
        """
        read = self._with_control if special else self._content
        for i, chunk in enumerate(self._chunks(pieces)):
            # A vocabulary that puts a space before a text gets the chunk without its leading space.
            continues = i > 0 and chunk.startswith(" ") and self.adds_space
            text = chunk[1:] if continues else chunk
            yield from read(text, continues or (space_prefix and i == 0))

    def _with_control(self, text: str, space_prefix: bool) -> list[int]:
        return self._read(text, space_prefix, special=True)

    def _content(self, text: str, space_prefix: bool) -> list[int]:
        """Return the tokens of a text without markers: the name of each is cut, so it is spelt."""
        tokens = self._read(text, space_prefix, special=False)
        found = self._markers.among(tokens)
        if not found or len(text) < 2:
            return tokens
        names = "|".join(re.escape(self._markers.name(token)) for token in found)
        cuts = [match.start() + 1 for match in re.finditer(names, text)]
        cuts = cuts or [len(text) // 2]  # sentencepiece writes a space in another way
        return [
            token
            for first, end in pairwise([0, *cuts, len(text)])
            for token in self._content(text[first:end], space_prefix and first == 0)
        ]

    def _read(self, text: str, space_prefix: bool, *, special: bool) -> list[int]:
        if self.adds_space and not space_prefix:
            line = self._line
            tokens = self._native("\n" + text, special)
            if tokens[: len(line)] == line:
                return tokens[len(line) :]
        return self._native(text, special)

    @cached_property
    def _line(self) -> list[int]:
        return self._native("\n", False)

    @cached_property
    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        """The names of tokens: of those with a gap between words, and of all."""
        names = [name for name in self._all_names() if len(name) > 1]
        return [name for name in names if _WORD_GAP.search(name)], names

    def _chunks(self, pieces: Iterable[str]) -> Iterator[str]:
        buffer, start = "", 0
        for piece in pieces:
            buffer, start = buffer[start:] + piece, 0
            while len(buffer) - start > 2 * CHUNK_CHARS:
                end = self._cut(buffer, start)
                yield buffer[start:end]
                start = end
        if start < len(buffer):
            yield buffer[start:]

    def _cut(self, text: str, start: int) -> int:
        """Return the end of the chunk that begins at `start`: between two words, and not within a token's name."""
        gap = _WORD_GAP.search(text, start + CHUNK_CHARS, start + 2 * CHUNK_CHARS)
        end = gap.start() if gap else start + CHUNK_CHARS
        names = self._names[0 if gap else 1]
        found = (text.find(name, max(start, end - len(name)) + 1, end + len(name) - 1) for name in names)
        return min((first for first in found if first >= 0), default=end)
