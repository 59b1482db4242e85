"""Takes the calls of tools out of a reply that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from edgekv.binding.model import Model
from edgekv.prompt.tool_form import tool_form
from edgekv.prompt.tools import CallFormat, ToolUse

from .request import GenerationRequest
from .stats import Stats
from .stopping import overlap


def with_tool_calls(request: GenerationRequest, use: ToolUse, model: Model) -> tuple[GenerationRequest, ToolCallReader]:
    """A reply that may call tools as one that follows a grammar, and what then reads the calls."""
    form = tool_form(model).calls
    return replace(request, grammar=form.grammar(use)), ToolCallReader(form)


class ToolCallReader:
    """Gives out the text of a reply before its calls, and reads these when it ends.

    has_calls: they have begun, so that nothing more is given out
    """

    def __init__(self, form: CallFormat) -> None:
        self.has_calls = False
        self._form = form
        self._text = ""
        self._n_given = 0

    def follow(self, texts: Iterable[str], stats: Stats) -> Iterator[str]:
        """The pieces without calls, which `stats` has at the end. What may begin a call is held back."""
        for text in texts:
            self._text += text
            yield self._new(len(self._text) - overlap(self._text, self._form.before))
        yield self._new(len(self._text))
        stats.tool_calls = self._form.parsed(self._text)

    def _new(self, most: int) -> str:
        n_before = self._form.n_before_calls(self._text)
        self.has_calls = n_before < len(self._text)
        end = max(self._n_given, min(most, n_before))
        new = self._text[self._n_given : end]
        self._n_given = end
        return new
