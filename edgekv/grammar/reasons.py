"""Reasons for which llguidance refuses a grammar or a schema, in words of schemas."""

from __future__ import annotations

import re

_LONGEST = 300  # characters of a reason in llguidance's own words

# llguidance's message -> a plain reason; \1 and \2 stand for its groups
_MEANT = (
    (r"Unimplemented keys: \[(.*?)\]", r"it has \1, which no grammar expresses"),
    (r"Unsatisfiable schema: Regex is empty", r"nothing fits it: its patterns, formats or lengths exclude each other"),
    (r"Unsatisfiable schema: ([^\n]*)", r"nothing fits it: \1"),
    (r"Unknown format: ([^\n]*)", r"its format '\1' is unknown"),
    (r"Invalid type: ([^\n]*)", r"its type '\1' is unknown"),
    (r"Resource '(.*?)' is not present", r"it refers to \1, and other documents are not fetched"),
    (r"Pointer '(.*?)' does not exist", r"it refers to '#\1', which is not there"),
    (r"grammar size \(number of symbols\) too big \(limit for this grammar: (\d+)\)", r"it has more than \1 symbols"),
    (r"schema too large|initial lexer configuration", r"it is too large"),
    (r"oneOf constraints are not supported", r"alternatives of its oneOf may overlap; anyOf takes any that fits"),
    (r"Failed to generate regex for (?:integer|float) range", r"a bound of a number has too many digits"),
    (r"Value for 'multipleOf' has too many digits", r"its multipleOf has too many digits"),
    (r"patternProperty regexes /(.*?)/ and /(.*?)/ are not", r"its patternProperties '\1' and '\2' overlap"),
    (
        r"min/maxProperties only supported",
        r"minProperties and maxProperties need every name in properties to be required",
    ),
    (r"circular references with sibling keys", r"a reference in it goes in a circle, and has words beside it"),
    (r"regex parse error:.*?error: ([^\n]*)", r"a pattern cannot be followed: \1"),
    (r"lexer error", r"a text or a pattern in it has no end"),
)
_PLACE = re.compile(r"(?:at )?(\d+)\(\d+\): ")  # place in a grammar in Lark's syntax


def reason_of(error: str) -> str:
    """Return why a grammar or a schema is refused. error: the message of llguidance"""
    place = _PLACE.match(error)
    where = "" if place is None else f"line {place[1]}: "
    for said, meant in _MEANT:
        found = re.search(said, error, re.DOTALL)
        if found is not None:
            return where + found.expand(meant)
    rest = error if place is None else error[place.end() :]
    return where + (rest.strip().splitlines() or ["it is refused without a reason"])[0][:_LONGEST]
