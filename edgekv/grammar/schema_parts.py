"""Parts of a JSON schema, and words of them that llguidance would not follow as they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

# keywords that hold schemas by name
SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})

_VALUES = frozenset({"const", "enum", "default", "examples", "example"})  # keywords that hold no schemas
_NUMBERS = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_LIMIT = 1 << 63  # integers from it on are cut, and the least one ends the process


class Part(NamedTuple):
    """A schema within another one. place: path to it, with a slash at its end, as in "properties/id/" """

    place: str
    schema: dict[str, Any]


def parts(schema: Any, place: str = "") -> Iterator[Part]:
    """Yield a schema of plain values, and all schemas within it. Words of a part may be deleted when it comes."""
    if isinstance(schema, list):
        for i, inner in enumerate(schema):
            yield from parts(inner, f"{place}{i}/")
    if not isinstance(schema, dict):
        return
    yield Part(place, schema)
    for key, value in schema.items():
        if key in SCHEMAS_BY_NAME and isinstance(value, dict):
            for name, inner in value.items():
                yield from parts(inner, f"{place}{key}/{name}/")
        elif key not in _VALUES:
            yield from parts(value, f"{place}{key}/")


def rounded_numbers(part: Part) -> list[str]:
    """Return the words of a part that hold a number which llguidance rounds: it takes each as a double."""
    return [word for word in _NUMBERS if not _is_exact(part.schema.get(word))]


def _is_exact(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return all(map(_is_exact, value.values() if isinstance(value, dict) else value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    return abs(value) < _LIMIT and float(value) == value


def _is_any_name(schema: Any) -> bool:
    """Return True for a schema of names that is true of each of them."""
    return schema is True or (isinstance(schema, dict) and schema in ({}, {"type": "string"}))


# words that llguidance lacks -> whether one says nothing with this value, in this schema
_SAYS_NOTHING: dict[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "propertyNames": lambda value, _: _is_any_name(value),
    "uniqueItems": lambda value, _: value is False,
    "not": lambda value, _: value is False,
    "unevaluatedProperties": lambda value, _: value is True or value == {},
    "unevaluatedItems": lambda value, _: value is True or value == {},
    "dependentRequired": lambda value, _: value == {},
    "dependentSchemas": lambda value, _: value == {},
    "dependencies": lambda value, _: value == {},
    "if": lambda _, schema: not schema.keys() & {"then", "else"},
    "then": lambda _, schema: "if" not in schema,
    "else": lambda _, schema: "if" not in schema,
    "minContains": lambda _, schema: "contains" not in schema,
    "maxContains": lambda _, schema: "contains" not in schema,
}


def drop_empty_words(schema: dict[str, Any]) -> None:
    """Take out of a schema the words that llguidance refuses although they say nothing."""
    for part in parts(schema):
        empty = [
            key for key, value in part.schema.items() if key in _SAYS_NOTHING and _SAYS_NOTHING[key](value, part.schema)
        ]
        for key in empty:
            del part.schema[key]


def schemas_within(grammar: str) -> Iterator[Any]:
    """Yield the schemas that a grammar in Lark's syntax holds."""
    for found in re.finditer(r"%json\s*", grammar):
        try:
            yield json.JSONDecoder().raw_decode(grammar, found.end())[0]
        except (ValueError, RecursionError):
            continue  # the compiler of grammars says what is wrong
