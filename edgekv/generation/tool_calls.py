"""Replies that may call tools: their grammar, and the calls, which are taken out of pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edgekv.cells.loaded_model import LoadedModel
from edgekv.errors import ConfigError, GrammarError
from edgekv.grammar.combinations import multiplies
from edgekv.grammar.masks import Matcher
from edgekv.grammar.size import GRAMMAR_BYTES, schema_bytes
from edgekv.grammar.source import Grammar
from edgekv.grammar.tool_schemas import FittedSchema, any_object, fitted, plain
from edgekv.prompt.tool_form import tool_form
from edgekv.prompt.tools import CallFormat, ToolUse

from .request import GenerationRequest
from .stats import Stats
from .stopping import overlap

CUT = ("length", "context", "loop", "cancelled")  # ends of replies that may cut off a call

Dropped = tuple[tuple[str, tuple[str, ...]], ...]  # names of tools, and the words of their schemas that are not held


def with_tool_calls(
    request: GenerationRequest, use: ToolUse, loaded: LoadedModel, stats: Stats
) -> tuple[GenerationRequest, Matcher, ToolCallReader]:
    """Return the request with the grammar of tool calls, its matcher, and the reader of these calls.

    stats: gets the parts of the tools' schemas that the grammar does not enforce

    A reply without calls fits the JSON schema of the request, if it has one. Raises ConfigError if calls could not be
    told from it.
    """
    form, schema = tool_form(loaded.model).calls, None
    if request.grammar is not None:
        if not form.before:
            raise ConfigError(
                "tools beside json_schema need a chat template that writes words before a call, and this one writes "
                "none; leave one of both out"
            )
        loaded.matcher(request.grammar)  # an error names the schema here, and tools below
        schema = request.grammar.schema
    grammar, matcher, stats.relaxed_tools = _tool_matcher(form, use, loaded, schema)
    return replace(request, grammar=grammar), matcher, ToolCallReader(form)


def _tool_matcher(
    form: CallFormat, use: ToolUse, loaded: LoadedModel, reply: Mapping[str, Any] | None
) -> tuple[Grammar, Matcher, Dropped]:
    """Return the grammar of calls, its matcher, and the schemas' relaxed parts. reply: as of `CallFormat.grammar`

    The grammar holds a schema that compiles as it is, and leaves out the words of others that do not compile. If all
    tools together are too much for one grammar, or for the plan, the largest schemas stand for any object. So do those
    that combine many alternatives if there is no room for that.

    Raises what `LoadedModel.matcher` raises, but GrammarError only if the names of the tools alone are too much.
    """
    schemas = _within_the_plan([plain(tool.parameters) for tool in use.callable])
    grammar = form.grammar(use, schemas, reply)
    too_many = set()
    if grammar.multiplies and loaded.room_to_combine(grammar.name) is not None:
        too_many = {i for i, it in enumerate(schemas) if multiplies(it.schema)}
        schemas = [any_object() if i in too_many else it for i, it in enumerate(schemas)]
        grammar = form.grammar(use, schemas, reply)
    with suppress(GrammarError):
        matcher = loaded.matcher(grammar)
        if not matcher.notes:
            return grammar, matcher, _dropped(use, schemas)
    schemas = _within_the_plan(
        [
            any_object() if i in too_many else fitted(tool.parameters, loaded.judge)
            for i, tool in enumerate(use.callable)
        ]
    )
    grammar = form.grammar(use, schemas, reply)
    largest = sorted(range(len(schemas)), key=lambda i: -len(use.callable[i].parameters))
    while True:
        try:
            return grammar, loaded.matcher(grammar), _dropped(use, schemas)
        except GrammarError:
            if not largest:
                raise
        n_half = -(-len(largest) // 2)
        for i in largest[:n_half]:
            schemas[i] = any_object()
        del largest[:n_half]
        grammar = form.grammar(use, schemas, reply)


def _within_the_plan(schemas: list[FittedSchema]) -> list[FittedSchema]:
    """Return the schemas of all tools. The largest ones stand for any object if all take more than is planned."""
    found = list(schemas)
    n_bytes = [schema_bytes(it.schema) for it in found]
    while sum(n_bytes) > GRAMMAR_BYTES:
        largest = max(range(len(found)), key=n_bytes.__getitem__)
        found[largest], n_bytes[largest] = any_object(), 0
    return found


def _dropped(use: ToolUse, schemas: list[FittedSchema]) -> Dropped:
    return tuple((tool.name, it.dropped) for tool, it in zip(use.callable, schemas, strict=True) if it.dropped)


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
        if stats.finish_reason not in CUT:
            yield self._new(len(self._text))
        stats.tool_calls = self._form.parsed(self._text)

    def _new(self, most: int) -> str:
        n_before = self._form.n_before_calls(self._text)
        self.has_calls = n_before < len(self._text)
        end = max(self._n_given, min(most, n_before))
        new = self._text[self._n_given : end]
        self._n_given = end
        return new
