"""GBNF, the grammars of llama.cpp, rewritten as Lark's, which llguidance reads.

Source of the syntax: `llama_grammar_parser` of llama.cpp. The last definition of a rule counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from edgekv.errors import GrammarError

MAX_GROUPS = 100  # groups within each other
MAX_REPETITIONS = 100_000

_LARK = re.compile(r"^\s*(%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_BREAKS = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d+)?\s*)?\}")
_TOKEN = re.compile(r"(!?)(?:<\[(\d+)\]>|(<[^>]*>))")
_ESCAPE = re.compile(r'\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([trn\\"\[\]-]))')
_PLAIN_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}
_NOTHING = '""'


@dataclass(frozen=True)
class Tokens:
    """Tokens of a vocabulary that a grammar may name.

    ends: tokens that end a reply; id_of: returns the id of the token that is spelt so, None if there is none
    """

    n_vocab: int
    ends: Sequence[int]
    id_of: Callable[[str], int | None]


@dataclass(frozen=True)
class _Rule:
    """A rule that another one names."""

    name: str


@dataclass(frozen=True)
class _Token:
    """A token, in Lark's syntax."""

    text: str


_Expression = list["str | _Rule | _Token"]  # parts of an expression in Lark's syntax


def is_lark(text: str) -> bool:
    """Return True for a grammar in Lark's syntax, False for GBNF."""
    return _LARK.search(text) is not None


def lark_of(text: str, tokens: Tokens) -> str:
    """Return a grammar in GBNF as a grammar in Lark's syntax. Raises GrammarError if it cannot be translated."""
    rules = _Parser(text, tokens).rules()
    if "root" not in rules:
        raise _refusal("has no rule 'root', with which replies begin; add one")
    missing = {rule for expression in rules.values() for rule in _named(expression)} - rules.keys()
    if missing:
        raise _refusal(f"names the rule {min(missing)!r}, which it does not define; define it")
    regular = _regular(rules)
    names = {name: f"{'R' if name in regular else 'r'}{i}" for i, name in enumerate(rules)}
    lines = [f"{names[name]}: {_told(expression, names)}" for name, expression in rules.items()]
    return "\n".join(["%llguidance {}", f"start: {names['root']}", *lines])


def _told(expression: _Expression, names: Mapping[str, str]) -> str:
    return "".join(
        names[part.name] if isinstance(part, _Rule) else part.text if isinstance(part, _Token) else part
        for part in expression
    )


def _named(expression: _Expression) -> set[str]:
    return {part.name for part in expression if isinstance(part, _Rule)}


def _regular(rules: Mapping[str, _Expression]) -> set[str]:
    """Return the rules that a regular expression can hold: of characters, and not recursive. Lark's lexer takes these.

    It is fast, and exact if all rules are regular. Otherwise each of them takes the longest text that fits.
    """
    found: set[str] = set()
    order = TopologicalSorter({name: _named(expression) for name, expression in rules.items()})
    with suppress(CycleError):  # rules outside of a cycle still come, in order
        order.prepare()
    while ready := order.get_ready():
        regular = [name for name in ready if not any(isinstance(part, _Token) for part in rules[name])]
        found |= {*regular}
        order.done(*regular)  # a rule that names another one is never ready
    return found


def _refusal(what: str) -> GrammarError:
    return GrammarError(f"grammar {what} (docs/replies.md)")


class _Parser:
    """Parses GBNF by recursive descent."""

    def __init__(self, text: str, tokens: Tokens) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0
        self._n_groups = 0  # open groups

    def rules(self) -> dict[str, _Expression]:
        """Return the rules, by name."""
        rules = {}
        self._skip(_BLANKS_AND_BREAKS)
        while self._at < len(self._text):
            name = self._name()
            self._skip(_BLANKS)
            self._take("::=")
            self._skip(_BLANKS_AND_BREAKS)
            rules[name] = self._choice()
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._unexpected("the end of the line")
            self._skip(_BLANKS_AND_BREAKS)
        return rules

    def _choice(self) -> _Expression:
        found = self._sequence()
        while self._text.startswith("|", self._at):
            self._at += 1
            self._skip(_BLANKS_AND_BREAKS)
            found += [" | ", *self._sequence()]
        return found

    def _sequence(self) -> _Expression:
        found: _Expression = []
        while (item := self._item()) is not None:
            self._skip_within()
            while (count := self._count()) is not None:
                item = ["(", *item, ")", count] if count != "{0}" else [_NOTHING]
                self._skip_within()
            found += [" ", *item] if found else item
        return found or [_NOTHING]

    def _item(self) -> _Expression | None:
        """Return the next part of a sequence; None at its end."""
        first = self._text[self._at : self._at + 1]
        if first == '"':
            return [self._literal()]
        if first == "[":
            return [self._characters()]
        if first in ("<", "!"):
            return [self._token()]
        if first == "(":
            return self._group()
        if first == ".":
            self._at += 1
            return [r"/(?s:.)/"]
        return [_Rule(self._name())] if _NAME.match(first) else None

    def _group(self) -> _Expression:
        if self._n_groups == MAX_GROUPS:
            raise _refusal(f"has more than {MAX_GROUPS} groups within each other; give names to some of them")
        self._n_groups += 1
        self._take("(")
        self._skip(_BLANKS_AND_BREAKS)
        inner = self._choice()
        self._take(")")
        self._n_groups -= 1
        return ["(", *inner, ")"]

    def _count(self) -> str | None:
        """Return how often the item before may come, in Lark's syntax; None = once."""
        if self._text[self._at : self._at + 1] in ("*", "+", "?"):
            self._at += 1
            return self._text[self._at - 1]
        if not self._text.startswith("{", self._at):
            return None
        found = _COUNT.match(self._text, self._at)
        if found is None:
            raise self._unexpected("a number of repetitions, {2} or {2,5} or {2,}")
        low, comma, high = found[1], found[2], found[3]
        if any(len(digits) > 9 or int(digits) > MAX_REPETITIONS for digits in (low, high or "0")):
            raise _refusal(f"repeats {found[0][:40]}, but at most {MAX_REPETITIONS} times are taken; give fewer")
        if high is not None and int(high) < int(low):
            raise _refusal(f"repeats {found[0]}, of which the second number is the smaller one; exchange them")
        self._at = found.end()
        most = int(low) if comma is None else None if high is None else int(high)
        if most == 0:
            return "{0}"
        return f"{{{int(low)},{'' if most is None else most}}}"

    def _literal(self) -> str:
        self._take('"')
        found = ""
        while not self._text.startswith('"', self._at):
            found += self._character()
        self._take('"')
        return json.dumps(found, ensure_ascii=False)

    def _characters(self) -> str:
        """Return a class of characters, as a regular expression."""
        self._take("[")
        excluded = self._text.startswith("^", self._at)
        self._at += excluded
        found = ""
        while not self._text.startswith("]", self._at):
            first = last = self._character()
            if self._text.startswith("-", self._at) and not self._text.startswith("]", self._at + 1):
                self._at += 1
                last = self._character()
            if first > last:
                raise _refusal(f"has the range {first}-{last}, which holds no character; exchange the two")
            found += f"\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}"
        self._take("]")
        return f"/[{'^' if excluded else ''}{found}]/" if found else _NOTHING

    def _character(self) -> str:
        """Return the next character of a literal or a class, which may be escaped."""
        if self._at == len(self._text):
            raise self._unexpected("the end of a literal or of a class of characters")
        if self._text[self._at] != "\\":
            self._at += 1
            return self._text[self._at - 1]
        found = _ESCAPE.match(self._text, self._at)
        if found is None:
            raise self._unexpected(r"an escape: \n \r \t \\ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH")
        self._at = found.end()
        if found[4] is not None:
            return _PLAIN_ESCAPES.get(found[4], found[4])
        code = int(found[1] or found[2] or found[3], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise _refusal(f"has {found[0]}, which is no character; give a code point of Unicode, as in \\U0001F600")
        return chr(code)

    def _token(self) -> _Token:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._unexpected("a token, <[ID]> or <NAME>, or one with ! before it")
        self._at = found.end()
        token = int(found[2][:10]) if found[2] else self._tokens.id_of(found[3])
        if token is None:
            raise _refusal(f"names {found[3][:60]}, which is no token of the model; give its text in quotes")
        if token >= self._tokens.n_vocab:
            n_vocab = self._tokens.n_vocab
            raise _refusal(f"names the token {found[2][:10]}, but the model has {n_vocab}; give one of those")
        if found[1]:  # an end token may stand only at the end of a reply
            return _Token(f"<[^{','.join(map(str, sorted({token, *self._tokens.ends})))}]>")
        if token in self._tokens.ends:
            raise _refusal(f"names {found[0]}, which ends a reply; leave it out: a reply ends where the grammar does")
        return _Token(f"<[{token}]>")

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._unexpected("the name of a rule")
        self._at = found.end()
        return found[0]

    def _take(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise self._unexpected(text)
        self._at += len(text)

    def _skip(self, blanks: re.Pattern[str]) -> None:
        found = blanks.match(self._text, self._at)
        assert found is not None  # both patterns fit nothing, too
        self._at = found.end()

    def _skip_within(self) -> None:
        """Skip blanks and comments between the items of a sequence; within a group also line breaks."""
        self._skip(_BLANKS_AND_BREAKS if self._n_groups else _BLANKS)

    def _unexpected(self, wanted: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        here = self._text[self._at : self._at + 20]
        return _refusal(f"has {here!r} in line {line} where {wanted} must stand; correct it")
