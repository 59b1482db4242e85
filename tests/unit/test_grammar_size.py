"""The bound of a grammar's memory follows from its text, before anything is built."""

from __future__ import annotations

import pytest

from edgekv.errors import GrammarError
from edgekv.generation.tool_calls import _within_the_plan
from edgekv.grammar.masks import planned_bytes
from edgekv.grammar.size import ELSE, GRAMMAR_BYTES, IN_A_ROW, PATTERN, check_size, grammar_bytes, schema_bytes
from edgekv.grammar.source import grammar_of
from edgekv.grammar.tool_schemas import FittedSchema


@pytest.mark.parametrize(
    ("schema", "each"),
    [
        ({"const": "x" * 1000}, IN_A_ROW),
        ({"enum": ["x" * 1000]}, IN_A_ROW),
        ({"type": "string", "pattern": "x" * 1000}, PATTERN),
        ({"type": "object", "properties": {"x" * 1000: {}}}, ELSE),
        ({"anyOf": [{"properties": {"y": {"const": "x" * 1000}}}, {}]}, IN_A_ROW),
        ({"properties": {"const": {"const": "x" * 1000}, "description": {}}}, IN_A_ROW),
        ({"enum": [f"{i:0100}" for i in range(10)]}, ELSE),
    ],
    ids=["const", "enum of one", "pattern", "name", "nested", "property named as a keyword", "enum of many"],
)
def test_a_schema_counts_by_what_replies_say(schema, each):
    assert 1000 * each <= schema_bytes(schema) < 1000 * each + 200_000


def test_words_for_people_count_nothing():
    plain = {"type": "object", "properties": {"title": {"type": "string"}}}
    told = plain | {"title": "t" * 5000, "description": "d" * 5000, "examples": ["e" * 5000], "default": "f" * 5000}
    assert schema_bytes(told) == schema_bytes(plain)


def test_a_property_with_the_name_of_an_annotation_counts():
    assert schema_bytes({"properties": {"title": {"const": "x" * 1000}}}) > 1000 * IN_A_ROW


@pytest.mark.parametrize(
    "given",
    [
        {"json_schema": {"const": "x" * 20_000}},
        {"json_schema": {"enum": list(range(20_000))}},
        {"grammar": f'root ::= "{"x" * 20_000}"'},
        {"grammar": "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(3000)) + '\nr3000 ::= "b"'},
    ],
    ids=["const", "enum", "literal", "chain of rules"],
)
def test_what_may_take_more_than_is_planned_is_refused_by_name(given):
    with pytest.raises(GrammarError, match=rf"^{next(iter(given))} may take \d+\.\d MiB, but 8 MiB are planned"):
        grammar_of(given.get("grammar"), given.get("json_schema"))


def test_the_bound_itself_is_taken():
    check_size(GRAMMAR_BYTES, "grammar")
    with pytest.raises(GrammarError, match="of 50% of that length"):
        check_size(2 * GRAMMAR_BYTES, "grammar")


def test_literals_of_a_grammar_count_most():
    assert grammar_bytes('"xxxx"') == 6 * IN_A_ROW
    assert grammar_bytes(r'"a\"b" [a-z]') == 6 * IN_A_ROW + 6 * PATTERN


@pytest.mark.parametrize("before", ['[^"]', '/"/', '# "\n', r'"\""'])
def test_a_quote_elsewhere_begins_no_literal(before):
    assert grammar_bytes(f'{before} "{"x" * 1000}"') > 1000 * IN_A_ROW


def test_each_reply_at_a_time_has_a_grammar_of_its_own():
    one, four = (planned_bytes(1000, n) for n in (1, 4))
    assert four - one == 3 * GRAMMAR_BYTES


def test_the_largest_tools_stand_for_any_object_if_all_take_too_much():
    large, small = ({"type": "object", "properties": {"a": {"const": "x" * n}}} for n in (7000, 500))
    found = _within_the_plan([FittedSchema(it) for it in (small, large, small, large)])
    assert sum(schema_bytes(it.schema) for it in found) <= GRAMMAR_BYTES
    assert [it.dropped for it in found] == [(), ("parameters",), (), ()]
