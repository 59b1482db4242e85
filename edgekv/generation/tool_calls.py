"""Takes tool calls out of a reply that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from edgekv.engine.loaded_model import LoadedModel
from edgekv.grammar.masks import Matcher
from edgekv.prompt.tool_form import tool_form
from edgekv.prompt.tools import CallFormat, ToolUse

from .request import GenerationRequest
from .stats import Stats
from .stopping import overlap
from .tool_grammar import tool_matcher


def with_tool_calls(
    request: GenerationRequest, use: ToolUse, loaded: LoadedModel, stats: Stats
) -> tuple[GenerationRequest, Matcher, ToolCallReader]:
    """Return the request with the grammar of tool calls, its matcher, and the reader of these calls.

    stats: takes note of what the grammar does not hold of the tools' schemas
    """
    form = tool_form(loaded.model).calls
    grammar, matcher, stats.relaxed_tools = tool_matcher(form, use, loaded.matcher, loaded.judge)
    return replace(request, grammar=grammar), matcher, ToolCallReader(form)


class ToolCallReader:
    """Passes the text of a reply on up to its calls, and reads these at its end.

    has_calls: the calls have begun, so no more text is passed on
    """

    def __init__(self, form: CallFormat) -> None:
        self.has_calls = False
        self._form = form
        self._text = ""
        self._n_given = 0

    def follow(self, texts: Iterable[str], stats: Stats) -> Iterator[str]:
        """Yield the pieces without calls; `stats` gets the calls at the end. The possible start of a call is held."""
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
