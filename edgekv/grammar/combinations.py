"""Schemas that combine alternatives: each of one list with each of another, which takes far more memory than they."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from .schema_parts import SCHEMAS_BY_NAME

MOST_COMBINED = 200_000  # characters of all combinations; these take some 4 MiB of the 8 that a grammar may have

_ENDLESS = 1 << 62
_LISTS = ("anyOf", "oneOf")


class _Alternatives(NamedTuple):
    """Number and size of the alternatives that a schema stands for.

    n: the most alternatives of the schema or of one of its parts; n_chars: characters of the longest alternative
    n_combined: characters of all combinations, in the part with the most of them
    """

    n: int
    n_chars: int
    n_combined: int = 0


def multiplies(schema: Mapping[str, Any]) -> bool:
    """Return True if combining a schema's alternatives may take more memory than is planned for a grammar."""
    try:
        return _Counter(schema).count(schema).n_combined > MOST_COMBINED
    except RecursionError:  # references that go from one to the next a thousand times
        return True


class _Counter:
    """Counts alternatives of a schema, which references may name. root: the whole schema"""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, _Alternatives] = {}

    def count(self, schema: Any) -> _Alternatives:
        """Return the alternatives of a schema by itself."""
        if not isinstance(schema, Mapping):
            return _Alternatives(1, len(str(schema)))
        factors = list(self._factors(schema))
        inner = [self.count(it) for it in _within(schema)]
        own = len(json.dumps({key: value for key, value in schema.items() if key not in (*_LISTS, "allOf", "$ref")}))
        n = min(math.prod(it.n for it in factors), _ENDLESS)
        n_chars = own + sum(it.n_chars for it in factors)
        is_combined = sum(it.n > 1 for it in factors) > 1
        n_combined = max([n * n_chars * is_combined, *(it.n_combined for it in (*factors, *inner))])
        return _Alternatives(max([n, *(it.n for it in inner)]), n_chars, n_combined)

    def _factors(self, schema: Mapping[str, Any]) -> Iterator[_Alternatives]:
        """Yield the factors of a schema's combinations: lists of alternatives, schemas that all hold, a reference."""
        every = schema.get("allOf")
        for it in every if isinstance(every, list) else ():
            yield self.count(it)
        for key in _LISTS:
            if isinstance(schema.get(key), list) and schema[key]:
                found = [self.count(it) for it in schema[key]]
                n = sum(it.n for it in found)
                yield _Alternatives(n, max(it.n_chars for it in found), max(it.n_combined for it in found))
        if isinstance(schema.get("$ref"), str):
            yield self._referred(schema["$ref"])

    def _referred(self, reference: str) -> _Alternatives:
        if reference not in self._known:
            self._known[reference] = _Alternatives(1, 0)  # while it is counted, as it may refer to itself
            self._known[reference] = self.count(resolved(self._root, reference))
        return self._known[reference]


def _within(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield schemas of parts of a value that a schema describes."""
    for key, value in schema.items():
        if key in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            yield from value.values()
        elif key in ("items", "additionalProperties", "prefixItems"):
            yield from value if isinstance(value, list) else (value,)


def resolved(root: Mapping[str, Any], reference: str) -> Any:
    """Return the part of a schema that a reference (RFC 6901) names; None if there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    at: Any = root
    for step in reference.split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and step.isdecimal() and int(step) < len(at):
            at = at[int(step)]
        elif isinstance(at, Mapping) and step in at:
            at = at[step]
        else:
            return None
    return at
