"""The grammar of a reply that may call tools, whatever their schemas hold."""

from __future__ import annotations

from collections.abc import Callable

from edgekv.errors import GrammarError
from edgekv.grammar.masks import Matcher
from edgekv.grammar.source import Grammar
from edgekv.grammar.tool_schemas import FittedSchema, Judge, any_object, fitted, plain
from edgekv.prompt.tools import CallFormat, ToolUse

Dropped = tuple[tuple[str, tuple[str, ...]], ...]  # names of tools, and the words of their schemas that are not held


def tool_matcher(
    form: CallFormat, use: ToolUse, matcher_of: Callable[[Grammar], Matcher], judge: Judge
) -> tuple[Grammar, Matcher, Dropped]:
    """Return the grammar of calls and its matcher, and what was relaxed for them.

    A schema that compiles is held as it is. Of another one the words that do not compile are left out. If all tools
    together are too much for one grammar, the largest schemas stand for any object.

    matcher_of, judge: compile a grammar of calls, and a schema alone

    Raises what `matcher_of` raises, but GrammarError only if the names of the tools alone are too much.
    """
    schemas = [plain(tool.parameters) for tool in use.callable]
    grammar = form.grammar(use, schemas)
    try:
        matcher = matcher_of(grammar)
        if not matcher.notes:
            return grammar, matcher, _told(use, schemas)
    except GrammarError:
        matcher = None
    schemas = [fitted(tool.parameters, judge) for tool in use.callable]
    grammar = form.grammar(use, schemas)
    largest = sorted(range(len(schemas)), key=lambda i: -len(use.callable[i].parameters))
    while True:
        try:
            return grammar, matcher_of(grammar), _told(use, schemas)
        except GrammarError:
            if not largest:
                raise
        n_half = -(-len(largest) // 2)
        for i in largest[:n_half]:
            schemas[i] = any_object()
        del largest[:n_half]
        grammar = form.grammar(use, schemas)


def _told(use: ToolUse, schemas: list[FittedSchema]) -> Dropped:
    return tuple((tool.name, it.dropped) for tool, it in zip(use.callable, schemas, strict=True) if it.dropped)
