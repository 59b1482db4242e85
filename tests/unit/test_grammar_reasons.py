"""Errors of grammars say what is wrong in words of schemas, not in those of the library that compiles them."""

from __future__ import annotations

import llguidance
import pytest

from edgekv.grammar.masks import LIMITS
from edgekv.grammar.reasons import reason_of
from edgekv.grammar.source import grammar_of

BYTES = llguidance.LLTokenizer("byte")
MANY = {"type": "object", "properties": {f"{i}": {} for i in range(4000)}}
SCHEMAS = [
    (
        {"type": "array", "uniqueItems": True, "minContains": 2, "contains": {}},
        'it has "contains", "minContains", "uniqueItems", which no grammar expresses',
    ),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "nothing fits it: minimum (5) is greater than maximum (4)"),
    ({"allOf": [{"format": "date"}, {"pattern": "a"}], "type": "string"}, "nothing fits it: its patterns"),
    ({"type": "string", "format": "my-own"}, "its format 'my-own' is unknown"),
    ({"type": "person"}, "its type 'person' is unknown"),
    ({"$ref": "https://example.org/person.json"}, "it refers to https://example.org/person.json, and other documents"),
    ({"$ref": "#/$defs/nothing"}, "it refers to '#/$defs/nothing', which is not there"),
    (MANY, "it has more than 5000 symbols"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "alternatives of its oneOf may overlap"),
    ({"type": "integer", "minimum": 2**62}, "a bound of a number has too many digits"),
    ({"type": "number", "multipleOf": 0.07}, "its multipleOf has too many digits"),
    ({"type": "string", "pattern": "("}, "a pattern cannot be followed: unclosed group"),
    ({"type": "string", "pattern": "(?=a)b"}, "a pattern cannot be followed: look-around"),
    ({"patternProperties": {"a": {}, "b": {}}}, "its patternProperties 'a' and 'b' overlap"),
    ({"minProperties": 3, "properties": {"a": {}}}, "minProperties and maxProperties need every name"),
    ({"enum": 5}, "enum must be an array"),
]
GRAMMARS = [
    ('start: "a" nothing', 'line 1: unknown name: "nothing"'),
    ("start: b\nb: /(/", "line 2: a pattern cannot be followed: unclosed group"),
    ('start: "a', "line 1: a text or a pattern in it has no end"),
    ('start: %json {"type": "person"}', "line 1: its type 'person' is unknown"),
    ('b: "a"', "no start rule found"),
]


def error_of(text):
    return llguidance.LLMatcher(BYTES, text, log_level=0, limits=llguidance.LLParserLimits(**LIMITS)).get_error()


@pytest.mark.parametrize(("schema", "reason"), SCHEMAS, ids=[reason[:30] for _, reason in SCHEMAS])
def test_a_schema(schema, reason):
    assert reason_of(error_of(grammar_of(None, schema).text)).startswith(reason)


@pytest.mark.parametrize(("grammar", "reason"), GRAMMARS, ids=[reason[:30] for _, reason in GRAMMARS])
def test_a_grammar(grammar, reason):
    assert reason_of(error_of(grammar)).startswith(reason)


def test_other_words_are_cut():
    assert reason_of("at 3(4): odd " + "x" * 900 + "\nmore") == "line 3: odd " + "x" * 296
    assert reason_of("") == "it is refused without a reason"
