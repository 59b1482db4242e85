"""Write schemas with constants that llguidance would round as rules in Lark's syntax, which has constants as texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .combinations import resolved
from .schema_parts import parts, rounded_numbers

MOST_CHARS = 1 << 20  # characters of all rules
MOST_FIRST = 50  # members of an object that may be its first one
MOST_REFERENCES = 100  # references that are followed to constants

_NOTES = frozenset({"title", "description", "default", "examples", "example", "deprecated", "$schema", "$comment"})
_DEFINITIONS = ("$defs", "definitions")
_SHAPES: Mapping[str, type | tuple[type, ...]] = {
    "type": (str, list),
    "enum": list,
    "anyOf": list,
    "$ref": str,
    "items": (dict, bool),
    "minItems": int,
    "maxItems": int,
    "properties": dict,
    "required": list,
}
_KINDS = {"string": str, "boolean": bool, "null": type(None), "object": dict, "array": list}


class NotExactError(Exception):
    """A number would be rounded at a place that these rules cannot write. place: path to it, or to what is around it"""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


def exact_grammar(schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return a grammar in Lark's syntax for a schema that has such constants in closed objects, lists or alternatives.

    options: llguidance's, for the parts without such constants; these rules take their blanks from it

    Raises NotExactError for a schema with such constants elsewhere.
    """
    writer = _Writer(schema, options)
    start = writer.value(schema, "")
    rules = [f"r{i}: {rule}" for i, rule in enumerate(writer.rules)]
    return "\n".join(["%llguidance {}", f"start: {start}", f"W: /{options['whitespace_pattern']}/", *rules])


class _Writer:
    """Writes the values of a schema as expressions in Lark's syntax, and as rules r0, r1 and so on.

    root: the whole schema
    """

    def __init__(self, root: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.rules: list[str] = []
        self._n_chars = self._n_references = 0
        self._known: dict[int, bool] = {}  # by the identity of a part: whether it has a number that would be rounded
        self._options = options
        self._root = root
        self._definitions = {key: root[key] for key in _DEFINITIONS if key in root}
        self._defines_rounded = next(_rounded(self._definitions, ""), None) is not None

    def value(self, schema: Any, place: str) -> str:
        """Return the values of a schema."""
        if not isinstance(schema, dict) or not self._rounds(schema):
            return self._rule(f"%json {json.dumps(self._alone(schema))}", place)
        for word, shape in _SHAPES.items():
            if word in schema and not isinstance(schema[word], shape):
                raise NotExactError(f"{place}{word}")
        words = schema.keys() - _NOTES - {*_DEFINITIONS}
        if words & {"const", "enum"} and words <= {"const", "enum", "type"}:
            return self._constants(schema, place)
        if words == {"anyOf"}:
            inner = [self.value(it, f"{place}anyOf/{i}/") for i, it in enumerate(schema["anyOf"])]
            return self._rule(" | ".join(inner), place)
        if words == {"$ref"} and self._n_references < MOST_REFERENCES:
            self._n_references += 1
            return self.value(resolved(self._root, schema["$ref"]), place)
        if words <= {"type", "items", "minItems", "maxItems"} and schema.get("type") == "array":
            return self._list(schema, place)
        if words <= {"type", "properties", "required", "additionalProperties"} and schema.get("type") == "object":
            return self._object(schema, place)
        raise NotExactError(next(_rounded(schema, place), place))

    def _rule(self, expression: str, place: str) -> str:
        """Return the name of a new rule."""
        self._n_chars += len(expression)
        if self._n_chars > MOST_CHARS:
            raise NotExactError(place)
        self.rules.append(expression)
        return f"r{len(self.rules) - 1}"

    def _rounds(self, schema: Mapping[str, Any]) -> bool:
        """Return True if a schema, or a schema that it may refer to, has a number that would be rounded."""
        if id(schema) not in self._known:
            own = _own(schema)
            refers = self._defines_rounded and _refers(own)
            self._known[id(schema)] = refers or next(_rounded(own, ""), None) is not None
        return self._known[id(schema)]

    def _alone(self, schema: Any) -> dict[str, Any]:
        """Return a schema that can be compiled by itself. True stands for any value."""
        own = _own(schema) if isinstance(schema, dict) else {} if schema is True else {"not": {}}
        return {"x-guidance": self._options} | own | (self._definitions if _refers(own) else {})

    def _constants(self, schema: Mapping[str, Any], place: str) -> str:
        word = "const" if "const" in schema else "enum"
        values = [schema["const"]] if word == "const" else schema["enum"]
        try:
            texts = [_json(value) for value in values if _is_of(value, schema.get("type"))]
        except ValueError:  # infinity, or thousands of digits
            texts = []
        if not texts or {"const", "enum"} <= schema.keys():
            raise NotExactError(f"{place}{word}")
        return self._rule(" | ".join(map(_json, texts)), place)

    def _list(self, schema: Mapping[str, Any], place: str) -> str:
        least, most = max(schema.get("minItems", 0), 0), schema.get("maxItems")
        item = self.value(schema.get("items", {}), f"{place}items/")
        if most == 0:
            return '"[" W? "]"'
        more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        items = f'({item} (W? "," W? {item}){more} W?)'
        return f'"[" W? {items}{"" if least else "?"} "]"'

    def _object(self, schema: Mapping[str, Any], place: str) -> str:
        """Return an object. Its keys come in the order of the schema, each but the first after a comma."""
        named, required = schema.get("properties", {}), schema.get("required", [])
        are_named = all(isinstance(key, str) and key in named for key in required)
        if schema.get("additionalProperties") is not False or not are_named:
            raise NotExactError(f"{place}additionalProperties")
        members = []
        for key, inner in named.items():
            value = self.value(inner, f"{place}properties/{key}/")
            members.append(self._rule(f'{_json(_json(key))} W? ":" W? {value}', place))
        needed = {*required}
        must = [key in needed for key in named]
        n_first = must.index(True) + 1 if any(must) else len(members)
        if n_first > MOST_FIRST:
            raise NotExactError(f"{place}properties")
        later = [f'(W? "," W? {member}){"" if it else "?"}' for member, it in zip(members, must, strict=True)]
        beginnings = [" ".join([members[i], *later[i + 1 :]]) for i in range(n_first)]
        inside = self._rule(f"({' | '.join(beginnings)}) W?" if members else "W?", place)
        return f'"{{" W? {inside}{"" if any(must) else "?"} "}}"'


def _rounded(schema: Mapping[str, Any], place: str) -> Iterator[str]:
    return (f"{part.place}{word}" for part in parts(dict(schema), place) for word in rounded_numbers(part))


def _own(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without definitions for references."""
    return {key: value for key, value in schema.items() if key not in _DEFINITIONS}


def _refers(schema: Mapping[str, Any]) -> bool:
    return any("$ref" in part.schema for part in parts(dict(schema)))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _is_of(value: Any, kinds: Any) -> bool:
    """Return True if a value has one of the types that a schema names; None = any type."""
    if kinds is None:
        return True
    named = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number" in named or ("integer" in named and value == value // 1)
    return any(isinstance(kind, str) and isinstance(value, _KINDS.get(kind, ())) for kind in named)
