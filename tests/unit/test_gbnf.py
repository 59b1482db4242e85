"""Grammars in llama.cpp's syntax: what its parser takes is followed, or refused by name."""

from __future__ import annotations

import llguidance
import pytest

import edgekv
from edgekv.grammar.gbnf import Tokens, is_lark, lark_of
from edgekv.grammar.masks import LIMITS

BYTES = llguidance.LLTokenizer("byte")  # a token for each byte, then one that ends a reply
END = 256
TOKENS = Tokens(END + 1, (END,), {"<a>": ord("a"), "<end>": END}.get)


def fits(grammar: str, text: str) -> bool:
    """Return True if a grammar takes a text as a whole reply."""
    matcher = llguidance.LLMatcher(
        BYTES, lark_of(grammar, TOKENS), log_level=0, limits=llguidance.LLParserLimits(**LIMITS)
    )
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


FOLLOWED = {
    "a rule named start": ('root ::= start "b"\nstart ::= "a"', ["ab"], ["b", "a"]),
    "names that differ in case": ('root ::= ws WS Ws\nws ::= " "\nWS ::= "x"\nWs ::= "y"', [" xy"], ["  x", "xxy"]),
    "names of letters, digits and dashes": ('root ::= 1-a b-\n1-a ::= "x"\nb- ::= "y"', ["xy"], ["x"]),
    "escapes of code points": (r'root ::= "\u00e9" "\U0001F600" "\x41\xe9"', ["é😀Aé"], ["e😀Aé"]),
    "escapes of signs": (r'root ::= "\"\\\[\]\-\t\r\n"', ['"\\[]-\t\r\n'], ["\\"]),
    "a dash that is escaped": (r"root ::= [a\-z]", ["a", "-", "z"], ["b"]),
    "dashes at an end": ("root ::= [-a] [a-]", ["--", "aa", "-a"], ["b-"]),
    "signs in a class": (r"root ::= [\]\[/^\\]+", ["][/^\\"], ["a"]),
    "escapes in a class": (r"root ::= [\x41-\x43\u00e9\U0001F600-\U0001F602\n]+", ["AC", "é😁\n"], ["D", "😃"]),
    "all but a class": (r"root ::= [^^\n]", ["a", "é", "😀"], ["^", "\n", ""]),
    "a class of nothing": ('root ::= [] [^] "a"', ["a"], [""]),
    "any character": ("root ::= . .", ["é\n", "\r😀"], ["a", "abc"]),
    "slashes": ('root ::= "/" [/] "//"', ["////"], ["///"]),
    "an empty literal": ('root ::= ""* "a" ""', ["a"], [""]),
    "an empty alternative": ('root ::= "a" | ', ["", "a"], ["b"]),
    "no time": ('root ::= "a"{0} "b"{0,0} "c"', ["c"], ["ac", "bc"]),
    "times": ('root ::= "a"{2} "b"{1,2} "c"{2,}', ["aabcc", "aabbccc"], ["abcc", "aabbbcc", "aabc"]),
    "times in blanks": ('root ::= "a"{ 2 , 3 }', ["aa", "aaa"], ["a", "aaaa"]),
    "times of a group": ('root ::= ("a" | "b" "c"){2}', ["abc", "bca"], ["a", "bb"]),
    "times of times": ('root ::= "a"?{2} "b"+*', ["", "aabb"], ["aaa"]),
    "comments and breaks": ('# one\nroot ::= # two\n  "a" |\n  "b" # "c"\n\n# three', ["a", "b"], ["c"]),
    "breaks in a group": ('root ::= (\n"a"\n"b"\r\n|\n"c"\n) "d"', ["abd", "cd"], ["ad"]),
    "lines of another system": ('root ::= a\r\na ::= "x"\r\n', ["x"], ["a"]),
    "a text before its end": ('root ::= digits "5"\ndigits ::= [0-9]+', ["125", "55"], ["5", "12"]),
    "literals that begin alike": ('root ::= "ab" | [a] "bc"', ["ab", "abc"], ["a", "bc"]),
    "the later one of two rules": ('root ::= a\na ::= "x"\na ::= "y"', ["y"], ["x"]),
    "a recursive rule": ('root ::= "(" (root | n)? ")"\nn ::= [0-9]+', ["()", "((12))"], ["(", "(1)("]),
    "a rule that begins with itself": ('root ::= root "a" | "b"', ["b", "baa"], ["a"]),
    "a token by its number": ('root ::= <[97]> "b"', ["ab"], ["bb"]),
    "a token by its name": ("root ::= <a>{2}", ["aa"], ["a", "ab"]),
    "all but a token": ("root ::= !<[97]> !<a>+", ["bcd"], ["ab", "ba", "b"]),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_grammar_is_followed(name):
    grammar, right, wrong = FOLLOWED[name]
    assert [fits(grammar, text) for text in right] == [True] * len(right)
    assert [fits(grammar, text) for text in wrong] == [False] * len(wrong)


REFUSED = {
    "root ::= other": "names the rule 'other'.*define it",
    'other ::= "a"': "no rule 'root'",
    "": "no rule 'root'",
    'root : "a"': "::= must stand",
    'root ::= "a': "end of a literal",
    "root ::= [a": "end of a literal or of a class",
    r'root ::= "\q"': r"line 1 where an escape",
    r'root ::= "\x4"': "an escape",
    r'root ::= "\uD800"': r"\\uD800, which is no character",
    r'root ::= "\U00110000"': "no character",
    "root ::= [z-a]": "range z-a.*exchange",
    'root ::= "a"{2,1}': r"\{2,1\}.*exchange",
    'root ::= "a"{,2}': r"\{2\} or \{2,5\}",
    'root ::= "a"{100001}': "at most 100000",
    'root ::= "a"{0,99999999999}': "at most 100000",
    'root ::= ("a"': r"\) must stand",
    'root ::= "a")': "the end of the line",
    "root ::= *": "the end of the line",
    'root ::= "a"\n::= "b"': "in line 2 where the name of a rule",
    "root ::= " + "(" * 101 + '"a"' + ")" * 101: "more than 100 groups",
    "root ::= <a": "a token",
    "root ::= <b>": "<b>, which is no token of the model; give its text in quotes",
    "root ::= <[257]>": "token 257, but the model has 257",
    "root ::= <[99999999999999999999]>": "the model has 257",
    'root ::= "a" <end>': "<end>, which ends a reply; leave it out",
    'root ::= "a" <[256]>': "ends a reply",
}


@pytest.mark.parametrize("grammar", REFUSED)
def test_what_cannot_be_followed_is_refused_by_name(grammar):
    with pytest.raises(edgekv.GrammarError, match=REFUSED[grammar]):
        lark_of(grammar, TOKENS)


def test_no_other_token_is_one_that_ends_a_reply():
    assert f"<[^97,{END}]>" in lark_of("root ::= !<a>", TOKENS)


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ('start: "a"', True),
        ('// words\nstart : "a"', True),
        ('%llguidance {}\nstart: "a"', True),
        ('root ::= start\nstart ::= "a"', False),
        ('start ::= "a"\nroot ::= start', False),
        ('root ::= "a"', False),
    ],
)
def test_the_two_syntaxes_are_told_apart(grammar, expected):
    assert is_lark(grammar) is expected
