"""No object of a reply has a key twice, whatever is drawn."""

from __future__ import annotations

import json
import random

import llguidance
import numpy as np
import pytest

import edgekv
from edgekv.grammar.json_keys import KeyWatch, Pieces
from edgekv.grammar.key_rule import KeyRule, key_rule
from edgekv.grammar.masks import Matcher, Position
from edgekv.grammar.source import grammar_of
from edgekv.grammar.tool_schemas import plain
from edgekv.prompt.tools import CallFormat, tool_use

BYTES = llguidance.LLTokenizer("byte")  # a token for each byte, then one that ends a reply
END, N_TOKENS = BYTES.eos_token, BYTES.vocab_size
PIECES = [bytes([byte]) for byte in range(256)] + [b""] * (N_TOKENS - 256)


def matcher_of(grammar):
    lib = llguidance.LLMatcher(BYTES, grammar.text, log_level=0)
    watch = KeyWatch(grammar.keys, Pieces(PIECES, PIECES.__getitem__))
    return Matcher(Position(lib, grammar.name, N_TOKENS, N_TOKENS), watch)


def drawn(matcher: Matcher, seed: int, likely: str = "", most: int = 400) -> str | None:
    """Return a reply that is drawn at random; None if it has no end. likely: signs that come four times in five"""
    choose, reply = random.Random(seed), b""
    for _ in range(most):
        logits = np.zeros(N_TOKENS, np.float32)
        matcher.mask(logits)
        allowed = [int(token) for token in np.flatnonzero(np.isfinite(logits))]
        near = [token for token in allowed if token == END or PIECES[token] in [*map(str.encode, likely)]]
        token = choose.choice(near if near and choose.random() < 0.8 else allowed)
        if token == END:
            break
        matcher.accept(token)
        reply += PIECES[token]
        if matcher.is_complete:
            break
    else:
        return None
    return reply.decode()


def without_repeats(pairs):
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


BIT = {"const": 1}
SCHEMAS = {
    "any keys": {"type": "object", "additionalProperties": BIT, "minProperties": 6, "maxProperties": 9},
    "named ones, too": {
        "type": "object",
        "properties": {"a": BIT, "b": BIT},
        "required": ["b"],
        "additionalProperties": BIT,
    },
    "two by a pattern": {
        "type": "object",
        "patternProperties": {"^[ab]$": BIT},
        "additionalProperties": False,
        "minProperties": 2,
        "maxProperties": 2,
    },
    "all of a pattern": {
        "type": "object",
        "patternProperties": {"^[a-d]{1,2}$": BIT},
        "additionalProperties": False,
        "minProperties": 20,
        "maxProperties": 20,
    },
    "as many as there are": {
        "type": "object",
        "patternProperties": {"^(ab|ac|b)$": BIT},
        "additionalProperties": False,
    },
    "one of a kind": {"type": "object", "patternProperties": {"^a$": BIT}, "additionalProperties": BIT},
    "in lists and objects": {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {"type": "object", "patternProperties": {"^[ab]$": BIT}}},
        "maxItems": 3,
    },
    "escapes": {
        "type": "object",
        "patternProperties": {r'^["\\\n]$': BIT},
        "additionalProperties": False,
        "minProperties": 3,
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_key_comes_twice(name):
    grammar = grammar_of(None, SCHEMAS[name])
    ended = 0
    for seed in range(12):
        reply = drawn(matcher_of(grammar), seed, likely='{}[]",:ab1')
        if reply is not None:
            json.loads(reply, object_pairs_hook=without_repeats)
            ended += 1
    assert ended >= 6


def test_without_the_rule_keys_come_twice():
    grammar = grammar_of(None, SCHEMAS["two by a pattern"])
    position = Position(llguidance.LLMatcher(BYTES, grammar.text, log_level=0), grammar.name, N_TOKENS, N_TOKENS)
    replies = [drawn(Matcher(position.after(ord("{")), None), seed, likely='"ab:1,}') for seed in range(8)]
    assert any(len(json.loads("{" + reply)) == 1 for reply in replies if reply is not None)


def test_an_object_that_must_have_more_keys_than_there_are_ends_in_an_error():
    schema = SCHEMAS["two by a pattern"] | {"minProperties": 3, "maxProperties": 3}
    with pytest.raises(edgekv.GrammarError, match="leaves no name for another key"):
        drawn(matcher_of(grammar_of(None, schema)), 0)


def test_keys_of_calls_of_tools_come_once():
    parameters = {
        "type": "object",
        "patternProperties": {"^[a-c]$": BIT},
        "additionalProperties": False,
        "minProperties": 3,
    }
    use = tool_use([{"type": "function", "function": {"name": "f", "parameters": parameters}}], "required")
    form = CallFormat()
    grammar = form.grammar(use, [plain(tool.parameters) for tool in use.callable])
    for seed in range(8):
        reply = drawn(matcher_of(grammar), seed, likely='{}",:abc1')
        assert reply is not None
        for call in form.parsed(reply):
            assert json.loads(call.arguments, object_pairs_hook=without_repeats) == dict.fromkeys("abc", 1)


def test_rules_of_schemas():
    assert grammar_of('root ::= "a"', None).keys is None
    assert key_rule([{"type": "object"}]) == KeyRule(None, by_pattern=False)
    assert key_rule([{"items": {"patternProperties": {"a": {}}}}]) == KeyRule(None, by_pattern=True)
    assert key_rule([{"properties": {"patternProperties": {}}}], "<a>") == KeyRule(b"<a>", by_pattern=False)


def watch_after(text: bytes, further: list[bytes]) -> tuple[KeyWatch, np.ndarray]:
    """Return a watch after a text, which is the first token, and the tokens that may follow."""
    pieces = [text, *further]
    watch = KeyWatch(KeyRule(), Pieces(pieces, pieces.__getitem__))
    watch.accept(0)
    return watch, np.array([False, *[True] * len(further)])


@pytest.mark.parametrize(
    ("text", "further", "repeating"),
    [
        (b'{"ab":1,', [b'"', b'"ab', b'"ab"', b'"ab":', b'"abc"', b' "ab"'], [b'"ab"', b'"ab":', b' "ab"']),
        (b'{"ab":1,"', [b"a", b"ab", b'ab"', b'ab":', b'a"', b'abc"'], [b'ab"', b'ab":']),
        (b'{"ab":1,"ab', [b'"', b'":', b"c", b'c"', b'\\"'], [b'"', b'":']),
        (b'{"ab":"x', [b'"', b'","', b'","ab', b'","ab"', b'"},{"ab"'], [b'","ab"']),
        (b'{"ab":1', [b',"ab"', b',"a"', b',{"ab"', b"}", b"]"], [b',"ab"']),
        (b'{"ab":{', [b'"ab"', b'"ab":1,"ab"', b'"ab":1},"ab"'], [b'"ab":1,"ab"', b'"ab":1},"ab"']),
        (b'{"a\\"b":1,"', [b'a\\"b"', b'a\\"', b'a"'], [b'a\\"b"']),
        (
            b'{"\\n":1,"',
            [b'\\n"', b'\\u000A"', b'\\u000a":', b'\\u000b"', b"\\u00"],
            [b'\\n"', b'\\u000A"', b'\\u000a":'],
        ),
        (b'{"\\n":1,"\\u00', [b'0A"', b'0B"', b"0"], [b'0A"']),
        (b'[{"a":1},', [b'{"a"', b'{"a":1,"a"'], [b'{"a":1,"a"']),
        ('{"é":1,"'.encode(), ["é".encode(), 'é"'.encode(), b"\xc3"], ['é"'.encode()]),
    ],
)
def test_a_token_may_hold_the_end_of_a_key(text, further, repeating):
    watch, allowed = watch_after(text, further)
    found = watch.repeating(None, allowed)
    assert [further[token - 1] for token in sorted(found)] == repeating
