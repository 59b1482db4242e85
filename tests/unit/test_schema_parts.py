"""Numbers of schemas are followed as they are written, and words that say nothing are taken."""

from __future__ import annotations

import json
import sys

import llguidance
import pytest

import edgekv
from edgekv.grammar.schema_parts import drop_empty_words, parts, rounded_numbers
from edgekv.grammar.source import grammar_of
from edgekv.grammar.tool_schemas import plain

BYTES = llguidance.LLTokenizer("byte")
ODD = 2**53 + 1  # the first whole number that no double holds


def fits(schema: object, text: str) -> bool:
    """Return True if the grammar of a schema takes a text as a whole reply."""
    matcher = llguidance.LLMatcher(BYTES, grammar_of(None, schema).text, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


EXACT = [0, 1, -1, 2**53, -(2**53), 10**18, 2**62, -(2**62), 1.5, -0.25, 0.1, 1e-7]


@pytest.mark.parametrize("value", EXACT)
def test_a_number_that_a_double_holds_is_followed_as_it_is_written(value):
    written = f"{value:.9f}".rstrip("0") if isinstance(value, float) else str(value)
    assert fits({"const": value}, written)
    if isinstance(value, int):
        near = [str(value - 1), str(value + 1)]
        assert [fits({"enum": [value, "other"]}, text) for text in near] == [False, False]


@pytest.mark.parametrize("value", [value for value in EXACT if isinstance(value, int) and abs(value) <= 2**53])
def test_a_bound_that_a_double_holds_is_followed_as_it_is_written(value):
    near = [str(value + step) for step in (-1, 0, 1)]
    assert [fits({"type": "integer", "minimum": value}, text) for text in near] == [False, True, True]
    assert [fits({"type": "integer", "maximum": value}, text) for text in near] == [True, True, False]


ROUNDED = [ODD, -ODD, 1234567890123456789, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 10**400, -(10**30), 1e30, 1e400]
PLACES = {
    "const": lambda number: {"const": number},
    "enum": lambda number: {"enum": ["a", number]},
    "properties/id/enum": lambda number: {"properties": {"id": {"enum": [number]}}},
    "properties/enum/maximum": lambda number: {"properties": {"enum": {"maximum": number}}},
    "items/anyOf/1/minimum": lambda number: {"items": {"anyOf": [{}, {"minimum": number}]}},
    "additionalProperties/exclusiveMaximum": lambda number: {"additionalProperties": {"exclusiveMaximum": number}},
    "$defs/a/b/exclusiveMinimum": lambda number: {"$defs": {"a/b": {"exclusiveMinimum": number}}},
    "patternProperties/^a/multipleOf": lambda number: {"patternProperties": {"^a": {"multipleOf": number}}},
    "prefixItems/0/const": lambda number: {"prefixItems": [{"const": [{"a": [number]}]}]},
}


@pytest.mark.parametrize("number", ROUNDED, ids=lambda it: str(it)[:24])
@pytest.mark.parametrize("place", PLACES)
def test_a_number_that_would_be_rounded_is_found_at_its_place(number, place):
    schema = PLACES[place](number)
    assert [f"{part.place}{word}" for part in parts(schema) for word in rounded_numbers(part)] == [place]
    if abs(number) < sys.float_info.max:
        assert plain(json.dumps({"type": "object", "properties": {"a": schema}})).dropped == (place.split("/")[-1],)


@pytest.mark.parametrize("number", ROUNDED, ids=lambda it: str(it)[:24])
@pytest.mark.parametrize(
    "place", [place for place in PLACES if place not in ("const", "enum", "$defs/a/b/exclusiveMinimum")]
)
def test_a_number_that_would_be_rounded_is_refused(number, place):
    with pytest.raises(edgekv.GrammarError, match="json_schema"):
        grammar_of(None, PLACES[place](number))
    if abs(number) < sys.float_info.max:
        with pytest.raises(edgekv.GrammarError, match=f"rounded, at {place.replace('^', '.')}: "):
            grammar_of(None, PLACES[place](number))


@pytest.mark.parametrize("word", ["default", "examples", "example", "description"])
def test_notes_may_have_any_number(word):
    grammar_of(None, {"type": "integer", word: [ODD, 2**64]})


def test_a_schema_within_a_grammar_is_checked_too():
    with pytest.raises(edgekv.GrammarError, match="grammar has a number that would be rounded, at enum"):
        grammar_of(f'start: "a" %json {{"type": "null"}} | %json{{"enum": [{ODD}]}}', None)
    with pytest.raises(edgekv.GrammarError, match="nests more than 100"):
        grammar_of("start: %json " + '{"items": ' * 200 + "{}" + "}" * 200, None)
    grammar_of('start: "%json {" %json {"enum": [5]}', None)


def test_an_object_has_a_key_once():
    with pytest.raises(edgekv.GrammarError, match="'type' twice"):
        grammar_of(None, '{"properties": {"a": {"type": "string", "type": "integer"}}}')


NOTHING = [
    {"propertyNames": True},
    {"propertyNames": {}},
    {"propertyNames": {"type": "string"}},
    {"uniqueItems": False},
    {"not": False},
    {"unevaluatedProperties": True},
    {"unevaluatedProperties": {}},
    {"unevaluatedItems": True},
    {"dependentRequired": {}},
    {"dependentSchemas": {}},
    {"dependencies": {}},
    {"if": {"type": "string"}},
    {"then": {"minLength": 3}, "else": {"minLength": 4}},
    {"minContains": 1, "maxContains": 3},
]


@pytest.mark.parametrize("words", NOTHING, ids=json.dumps)
def test_words_that_say_nothing_are_taken(words):
    schema = {"type": "object", "properties": {"a": {"type": "integer"} | words}, "additionalProperties": False} | words
    assert fits(schema, '{"a":5}')
    assert not fits(schema, '{"a":"b"}')
    assert plain(json.dumps(schema)).dropped == ()


@pytest.mark.parametrize(
    "words",
    [
        {"propertyNames": False},
        {"propertyNames": {"type": "string", "minLength": 1}},
        {"propertyNames": {"type": "integer"}},
        {"uniqueItems": True},
        {"not": {}},
        {"unevaluatedItems": False},
        {"dependentRequired": {"a": ["b"]}},
        {"if": {"type": "string"}, "then": {"minLength": 3}},
        {"contains": {}, "minContains": 2},
    ],
    ids=json.dumps,
)
def test_words_that_say_something_stay(words):
    schema = {"properties": {"a": dict(words)}}
    drop_empty_words(schema)
    assert schema == {"properties": {"a": words}}
