"""Constants that no double holds are followed to the last digit, or refused by their place."""

from __future__ import annotations

import llguidance
import pytest

import edgekv
from edgekv.grammar.exact_numbers import MOST_CHARS
from edgekv.grammar.masks import LIMITS
from edgekv.grammar.source import grammar_of

BYTES = llguidance.LLTokenizer("byte")
ID = 1234567890123456789
HUGE = 10**40 + 1
ROW = {
    "type": "object",
    "properties": {"id": {"enum": [ID, ID + 1, -ID]}, "n": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}


def fits(schema: object, text: str) -> bool:
    """Return True if the grammar of a schema takes a text as a whole reply."""
    limits = llguidance.LLParserLimits(**LIMITS)
    matcher = llguidance.LLMatcher(BYTES, grammar_of(None, schema).text, log_level=0, limits=limits)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


FOLLOWED = {
    "a constant": ({"const": ID}, [f"{ID}"], [f"{ID + 1}", f"{ID}0", f'"{ID}"']),
    "one of several": ({"enum": [ID, HUGE, -(2**63)]}, [f"{HUGE}", f"{-(2**63)}"], [f"{HUGE - 1}", f"{-(2**63) + 1}"]),
    "of a type": ({"type": ["integer", "null"], "enum": [ID, "a", None, 2.5]}, [f"{ID}", "null"], ['"a"', "2.5"]),
    "beside texts": ({"enum": [ID, 'é"\\', [ID, {"a": ID}]]}, ['"é\\"\\\\"', f'[{ID}, {{"a": {ID}}}]'], [f"[{ID}]"]),
    "a row": (
        ROW,
        [f'{{"id":{ID}}}', f'{{ "id" : {ID + 1} ,\n "s": "x"}}', f'{{"id":{-ID},"n":5,"s":"x"}}'],
        ['{"n":5}', f'{{"id":{ID + 2}}}', f'{{"id":{ID},"s":"x","n":5}}', f'{{"id":{ID},"t":5}}', f'{{"id":{ID},}}'],
    ),
    "a row that begins later": (
        ROW | {"required": ["n"]},
        ['{"n":5}', f'{{"id":{ID},"n":5}}', '{"n":5,"s":"x"}'],
        ["{}", f'{{"id":{ID}}}', f'{{"id":{ID + 2},"n":5}}'],
    ),
    "a row of nothing that is needed": (
        {key: value for key, value in ROW.items() if key != "required"},
        ["{}", "{ }", '{"s":"x"}', f'{{"id":{ID},"s":"x"}}'],
        ['{"s":"x","n":5}', '{"id":5}'],
    ),
    "rows": (
        {"type": "array", "items": ROW, "minItems": 1, "maxItems": 2},
        [f'[{{"id":{ID}}}]', f'[ {{"id":{ID}}} , {{"id":{ID + 1}}} ]'],
        ["[]", f'[{{"id":{ID}}},{{"id":{ID}}},{{"id":{ID}}}]', '[{"id":5}]'],
    ),
    "any number of them": (
        {"type": "array", "items": {"const": ID}},
        ["[]", "[ ]", f"[{ID},{ID},{ID}]"],
        [f"[{ID + 1}]"],
    ),
    "none of them": ({"type": "array", "items": {"const": ID}, "maxItems": 0}, ["[]"], [f"[{ID}]"]),
    "alternatives": (
        {"anyOf": [{"const": ID}, {"type": "null"}, ROW]},
        [f"{ID}", "null", f'{{"id":{ID}}}'],
        ["{}", "5"],
    ),
    "references": (
        {
            "type": "object",
            "properties": {"o": {"$ref": "#/$defs/o"}, "z": {"$ref": "#/$defs/z"}, "a": True},
            "additionalProperties": False,
            "$defs": {"o": ROW, "z": {"type": "boolean"}},
        },
        [f'{{"o":{{"id":{ID}}},"a":[1]}}'],
        ['{"o":{"id":5}}'],
    ),
    "what is not referred to": ({"type": "integer", "$defs": {"a": {"maximum": 2**70}}}, ["5"], ['"a"']),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_constants_are_followed(name):
    schema, right, wrong = FOLLOWED[name]
    assert [fits(schema, text) for text in right] == [True] * len(right)
    assert [fits(schema, text) for text in wrong] == [False] * len(wrong)


BIG = {"const": ID}
REFUSED = [
    ({"type": "object", "properties": {"a": BIG}}, "additionalProperties"),
    (
        {"type": "object", "properties": {"a": BIG}, "additionalProperties": False, "required": ["b"]},
        "additionalProperties",
    ),
    (
        {"type": "object", "properties": {"a": BIG}, "additionalProperties": False, "minProperties": 1},
        "properties/a/const",
    ),
    ({"allOf": [BIG]}, "allOf/0/const"),
    ({"not": BIG}, "not/const"),
    ({"const": ID, "enum": [ID]}, "const"),
    ({"type": "string", "enum": [ID]}, "enum"),
    ({"const": ID, "minimum": 5}, "const"),
    ({"const": 1e400}, "const"),
    ({"enum": [ID], "type": 5}, "type"),
    ({"type": "array", "items": BIG, "minItems": "2"}, "minItems"),
    ({"type": "array", "prefixItems": [BIG]}, "prefixItems/0/const"),
    ({"type": "object", "properties": [BIG]}, "properties"),
    ({"anyOf": {"a": BIG}}, "anyOf"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [BIG, {"$ref": "#/$defs/a"}]}}}, ""),
    (ROW | {"required": [], "properties": {f"k{i}": BIG for i in range(60)}}, "properties"),
]


@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=[place or "circle" for _, place in REFUSED])
def test_other_places_are_refused(schema, place):
    with pytest.raises(edgekv.GrammarError, match=f"rounded, at {place.replace('$', '.')}|is not JSON"):
        grammar_of(None, schema)


def test_rules_have_a_limit():
    """Each part that refers to a definition holds all of them."""
    long = {"enum": [f"text {i}" for i in range(2000)]}
    named = {f"k{i}": {"$ref": "#/$defs/long"} for i in range(2 + MOST_CHARS // 10_000)}
    schema = {"type": "object", "properties": named | {"id": BIG}, "required": ["k0"], "additionalProperties": False}
    with pytest.raises(edgekv.GrammarError, match="rounded"):
        grammar_of(None, schema | {"$defs": {"long": long}})
