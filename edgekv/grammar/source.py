"""The grammar or JSON schema that a caller gives for a reply, checked as far as that needs no model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekv.errors import GrammarError

from .combinations import multiplies
from .exact_numbers import NotExactError, exact_grammar
from .key_rule import KeyRule, key_rule
from .schema_parts import drop_empty_words, parts, rounded_numbers, schemas_within
from .size import check_size, grammar_bytes, schema_bytes

MAX_CHARS = 1 << 17  # characters of a grammar or a schema
MAX_DEPTH = 100  # nested objects and lists of a schema
MAX_REPLY = 8_192  # tokens of a reply under a grammar: the parser keeps notes of each

# A schema describes values, and leaves blanks to the writer. A small model may write blanks without end.
JSON_OPTIONS = {"whitespace_pattern": r"[ ]|\n[ ]{0,40}", "lenient": False, "coerce_one_of": False}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar of replies, in the syntax of llguidance (Lark's), or as llguidance's JSON.

    name: name of the argument, for errors
    multiplies: alternatives of its schema may be combined, which takes far more memory than its text
    keys: the rule for keys of its JSON; None = it is not known to be JSON
    """

    text: str
    name: str
    multiplies: bool = False
    keys: KeyRule | None = None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema that it was made of, with llguidance's options; None = it was made of something else."""
        if self.name != "json_schema" or self.text.startswith("%"):
            return None
        schema: dict[str, Any] = json.loads(self.text)["grammars"][0]["json_schema"]
        return schema


def grammar_of(grammar: str | None, json_schema: Mapping[str, Any] | str | bool | None) -> Grammar:
    """Return the grammar of a reply, from a grammar or a schema. json_schema: as for `schema_of`

    Raises GrammarError for an invalid or too large one, and if both are given.
    """
    if grammar is not None and json_schema is not None:
        raise GrammarError("grammar= and json_schema= are both given; a reply follows one of them")
    if json_schema is not None:
        schema = schema_of(json_schema, "json_schema")
        drop_empty_words(schema)
        check_size(schema_bytes(schema), "json_schema")
        text = json.dumps({"grammars": [{"json_schema": {"x-guidance": JSON_OPTIONS} | schema}]})
        if any(map(rounded_numbers, parts(schema))):
            try:
                text = exact_grammar(schema, JSON_OPTIONS)
            except NotExactError as error:
                raise _rounded(error.place, "json_schema") from None
        return Grammar(text, "json_schema", multiplies(schema), key_rule([schema]))
    if not isinstance(grammar, str) or not grammar.strip():
        raise GrammarError(f"grammar={grammar!r} is not possible; give a grammar as a text (docs/replies.md)")
    check_size(grammar_bytes(grammar), "grammar")
    schemas = [*schemas_within(grammar)]
    for schema in schemas:
        _check_depth(schema, "grammar")
        _check_numbers(schema, "grammar")
    return Grammar(grammar, "grammar", any(map(multiplies, schemas)))


def schema_of(schema: Mapping[str, Any] | str | bool, name: str) -> dict[str, Any]:
    """Return a schema (a mapping, its JSON text, or True for any value) as plain values, for the argument `name`.

    Raises GrammarError if it is no JSON schema, and if it has a key that would loosen it.
    """
    try:
        if isinstance(schema, str):
            _check_size(schema, name)
            plain = json.loads(schema, parse_constant=_refuse, object_pairs_hook=_once)
        else:
            given = dict(schema) if isinstance(schema, Mapping) else schema
            plain = json.loads(json.dumps(given, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarError(f"{name} is not JSON: {error}; give a JSON schema as a mapping or as a text") from error
    if plain is True:
        return {}
    if not isinstance(plain, dict):
        raise GrammarError(f"{name}={plain!r} allows no reply; give a JSON schema, which is an object")
    if "x-guidance" in plain:
        raise GrammarError(f"{name} holds 'x-guidance', which could loosen it; leave that out")
    _check_depth(plain, name)
    return plain


def _check_depth(value: object, name: str) -> None:
    if not _is_within(value, MAX_DEPTH):
        raise GrammarError(f"{name} nests more than {MAX_DEPTH} objects and lists; give a flatter one")


def _is_within(value: object, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_is_within(it, depth - 1) for it in inner)


def _check_numbers(schema: object, name: str) -> None:
    """Raise GrammarError for a number that would be rounded."""
    for part in parts(schema):
        for word in rounded_numbers(part):
            raise _rounded(f"{part.place}{word}", name)


def _rounded(place: str, name: str) -> GrammarError:
    return GrammarError(
        f"{name} has a number that would be rounded, at {place[:200]}: a bound has to be a double, less than 2**63; a "
        "larger constant has to stand in an object with 'additionalProperties': false, a list or anyOf; write it as "
        "a text, as in '1234567890123456789', or leave it out"
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has {name[:60]!r} twice")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _check_size(text: str, name: str) -> None:
    if len(text) > MAX_CHARS:
        raise GrammarError(f"{name} has {len(text)} characters, but at most {MAX_CHARS} are taken; give a smaller one")
