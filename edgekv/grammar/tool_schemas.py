"""Schemas of tools, relaxed as far as a grammar cannot hold them: libraries write them, so no word is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .combinations import resolved
from .schema_parts import SCHEMAS_BY_NAME, drop_empty_words, parts, rounded_numbers
from .source import JSON_OPTIONS

# Schemas of tools come from libraries, and their callers cannot change them: a constraint that no grammar can express
# is dropped, while everything else holds. A schema that a user gives for a reply is never loosened.
TOOL_OPTIONS = JSON_OPTIONS | {"lenient": True, "coerce_one_of": True}

MOST_CHECKS = 500  # parts of one schema that are compiled alone; beyond them any object is taken
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

# keywords that hold schemas in a list, and alone
_LISTED = {"anyOf", "oneOf", "allOf", "prefixItems"}
_ALONE = {"additionalProperties", "items"}

_NO_GRAMMAR = re.compile(r"\(\?<?[=!]|\\[1-9bB]")  # lookaround, references to groups, boundaries of words


class Verdict(NamedTuple):
    """Answer of the compiler of grammars to a schema. notes: constraints that it leaves out"""

    fits: bool
    notes: tuple[str, ...] = ()


Judge = Callable[[Mapping[str, Any]], Verdict]


class FittedSchema(NamedTuple):
    """A schema that a grammar can hold. dropped: words of the tool's own schema that it does not hold"""

    schema: Mapping[str, Any]
    dropped: tuple[str, ...] = ()


def plain(parameters: str) -> FittedSchema:
    """Return the schema of a tool's arguments, which are an object, without what is known to fit no grammar.

    parameters: the schema, as JSON
    """
    dropped: list[str] = []
    schema = json.loads(parameters, object_hook=lambda it: _without_unusable_patterns(it, dropped))
    for part in parts(schema):
        for word in rounded_numbers(part):
            del part.schema[word]
            dropped.append(word)
    drop_empty_words(schema)
    if schema.get("type", "object") != "object":
        dropped.append("type")
    return FittedSchema(schema | ANY_OBJECT, _once(dropped))


def fitted(parameters: str, judge: Judge) -> FittedSchema:
    """Return the schema of a tool's arguments: as it is, without the words that do not compile, or any object."""
    schema, dropped = plain(parameters)
    verdict = judge(schema)
    if not verdict.fits:
        mending = _Mending(schema, judge)
        schema = mending.mended(schema)
        verdict, dropped = judge(schema), (*dropped, *mending.dropped)
        if not verdict.fits:
            return any_object()
    return FittedSchema(schema, _once([*dropped, *(word for note in verdict.notes for word in _words_of(note))]))


def any_object() -> FittedSchema:
    """Return the schema of arguments that are only known to be an object."""
    return FittedSchema(ANY_OBJECT, ("parameters",))


class _Mending:
    """Removes the parts of one schema that do not compile, one by one. dropped: the keywords that were removed"""

    def __init__(self, root: Mapping[str, Any], judge: Judge) -> None:
        self.dropped: list[str] = []
        self._root = root
        self._judge = judge
        self._n_left = MOST_CHECKS

    def mended(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return a schema, or a part of it, in which each part compiles by itself."""
        parts = {key: value for key, value in schema.items() if key in SCHEMAS_BY_NAME | _LISTED | _ALONE | {"$ref"}}
        own = {key: value for key, value in schema.items() if key not in parts}
        if not self._compiles(own):
            alone = {key: value for key, value in own.items() if self._compiles({key: value})}
            self.dropped += [key for key in own if key not in alone and key != "$schema"]
            if not self._compiles(alone):  # its words contradict each other
                self.dropped += [key for key in alone if key != "type"]
                alone = {key: value for key, value in alone.items() if key == "type"}
            own = alone
        for key, value in parts.items():
            mended = self._mended_part(key, value)
            if mended is None:
                self.dropped.append(key)
            else:
                own[key] = mended
        return own

    def _mended_part(self, key: str, value: Any) -> Any:
        """Return a part that holds schemas; None = it holds none."""
        if key == "$ref":
            is_reference = isinstance(value, str) and isinstance(resolved(self._root, value), (dict, bool))
            return value if is_reference else None
        if key in SCHEMAS_BY_NAME:
            return {name: self._inner(it) for name, it in value.items()} if isinstance(value, dict) else None
        if isinstance(value, list):
            return [self._inner(it) for it in value] if key in _LISTED or key == "items" else None
        return self._inner(value) if key in _ALONE and isinstance(value, (dict, bool)) else None

    def _inner(self, schema: Any) -> Any:
        return self.mended(schema) if isinstance(schema, dict) else schema if isinstance(schema, bool) else {}

    def _compiles(self, schema: Mapping[str, Any]) -> bool:
        self._n_left -= 1
        return not schema or (self._n_left >= 0 and self._judge(schema).fits)


def _words_of(note: str) -> list[str]:
    """Return the words of a schema that a note of the compiler is about."""
    if found := re.search(r"\[.*\]", note):
        words: list[str] = json.loads(found[0])
        return words
    if found := re.fullmatch(r"Unknown format: (.*)", note):
        return [f"format {found[1][:40]}"]
    return ["oneOf"] if note.startswith("oneOf") else [note[:80]]


def _without_unusable_patterns(schema: dict[str, Any], dropped: list[str]) -> dict[str, Any]:
    """Return an object of a schema without patterns that no grammar can express."""
    named = schema.get("patternProperties")
    if isinstance(named, dict) and not all(map(_is_usable, named)):
        schema["patternProperties"] = {key: value for key, value in named.items() if _is_usable(key)}
        dropped.append("patternProperties")
    if isinstance(schema.get("pattern"), str) and not _is_usable(schema["pattern"]):
        del schema["pattern"]
        dropped.append("pattern")
    return schema


def _is_usable(pattern: str) -> bool:
    return _NO_GRAMMAR.search(pattern.replace("\\\\", "")) is None


def _once(words: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
