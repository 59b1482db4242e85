"""JSON schemas that somebody might send who means no good."""

from __future__ import annotations

import math

HOSTILE = {
    "remote reference": {"$ref": "https://example.org/person.json"},
    "reference to nothing": {"$ref": "#/$defs/nothing"},
    "nothing fits": {"type": "string", "enum": [1, 2]},
    "contradiction": {"type": "integer", "minimum": 5, "maximum": 4},
    "false": False,
    "no schema": "not JSON",
    "a list": [1, 2],
    "unknown type": {"type": "person"},
    "lookahead": {"type": "string", "pattern": "(?=a)b"},
    "unknown keyword": {"type": "array", "uniqueItems": True},
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 3}},
    "unknown format": {"type": "string", "format": "my-own"},
    "loosened": {"x-guidance": {"lenient": True}, "type": "string", "format": "my-own"},
    "endless": {"$ref": "#"},
    "large": {"enum": ["x" * 100 + str(i) for i in range(5000)]},
    "deep": "[" * 100_000,
    "no number": {"const": math.nan},
    "not plain": {"enum": [{1, 2}]},
    "rounded": {"type": "integer", "maximum": 2**60 + 1},
    "least integer": {"type": "integer", "minimum": -(2**63)},
    "rounded, in a list": {"allOf": [{"enum": [2**60 + 1]}]},
    "least bounds": {"type": "integer", "minimum": -1e30, "maximum": -1e29},
    "a key twice": '{"const": 1, "const": 2}',
    "long in a row": {"const": "".join(chr(97 + i * 7 % 26) for i in range(20_000))},
    "too wide": {"type": "object", "properties": {f"key{i}": {"type": "string"} for i in range(3000)}},
}
for _name, _depth in (("deep object", 3000), ("less deep object", 300)):
    HOSTILE[_name] = {"type": "integer"}
    for _ in range(_depth):
        HOSTILE[_name] = {"type": "array", "items": HOSTILE[_name]}

# A reply to these is bounded, whether it fits, is cut, or the grammar becomes too complex on the way.
HEAVY = {
    "many repeats": {"type": "string", "pattern": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"},
    "wide": {
        "type": "object",
        "properties": {f"key{i}": {"$ref": "#/$defs/x"} for i in range(1200)},
        "$defs": {"x": {"anyOf": [{"type": "string", "pattern": f"[a-z]{{{i}}}{i}.*"} for i in range(30)]}},
    },
    "endless object": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "many states": {"type": "string", "pattern": ".*a.{12}b.*|.*b.{13}c.*|.*c.{11}d.*"},
    "ambiguous": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 50},
    "combined": {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"k{i}.{j}": {"type": "string"}}} for j in range(12)]}
            for i in range(4)
        ]
    },
    "long": {"type": "string", "minLength": 20000},
}
