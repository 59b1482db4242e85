"""Tokens of a vocabulary that steer the model. Content never becomes one."""

from __future__ import annotations

import re
from collections.abc import Callable

# Of llama.cpp's llama_token_attr.
UNKNOWN, CONTROL, USER_DEFINED = 1 << 0, 1 << 3, 1 << 4
NAMED = UNKNOWN | CONTROL | USER_DEFINED  # llama.cpp finds these by their names before it tokenises the rest

_BARS = re.compile(r"<[|\uff5c].*[|\uff5c]>", re.DOTALL)
_SIGNS = re.compile(r"[^\w\s].*[^\W\d_].*[^\w\s]", re.DOTALL)  # a letter between two signs


class Markers:
    """The tokens that steer a model: its control tokens, and user-defined ones that are used as such.

    llama.cpp takes user-defined tokens from any text. Those for runs of blanks or for tags of HTML belong to texts. One
    is a marker if its name is in bars, as <|im_start|>, or is a word between signs that the chat template writes, as
    <tool_call>.

    attributes, name: of a token
    templates: the text of the model's chat templates
    """

    def __init__(
        self, n_vocab: int, attributes: Callable[[int], int], name: Callable[[int], str], templates: str
    ) -> None:
        self.name = name
        self._attributes = attributes
        self._templates = templates
        self._known = bytearray(n_vocab)  # 0 = not looked at, 1 = no marker, 2 = a marker

    def among(self, tokens: list[int]) -> set[int]:
        """Return the markers among some tokens."""
        return {token for token in {*tokens} if self._is_marker(token)}

    def _is_marker(self, token: int) -> bool:
        if not self._known[token]:
            self._known[token] = 1 + self._judged(token)
        return self._known[token] == 2

    def _judged(self, token: int) -> bool:
        attributes = self._attributes(token)
        if not attributes & (CONTROL | USER_DEFINED):
            return False
        name = self.name(token)
        if attributes & CONTROL:
            return len(name) > 1  # a single character cannot be spelt
        return bool(_BARS.fullmatch(name) or (_SIGNS.fullmatch(name) and name in self._templates))
