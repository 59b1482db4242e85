"""Bounds of the memory that a grammar takes, from its text. Each is the most that was measured of texts of its kind.

A reply that has to say a text in a row takes most: a state of the lexer for each character. All else is shared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgekv.errors import GrammarError
from edgekv.memory.sizes import MIB

GRAMMAR_BYTES = (
    8 * MIB
)  # the most for one grammar while it is built and followed (tests/memory/test_grammars_ceiling.py)

# bytes for each character
IN_A_ROW = 1000  # texts that replies say as they are
PATTERN = 330  # regular expressions, and rules of grammars
ELSE = 200  # all other parts of JSON schemas

# parts of a grammar that may hold a quote: literals, classes of characters, regular expressions, comments
_QUOTING = re.compile(r'("(?:[^"\\]|\\.)*")|\[(?:[^\]\\]|\\.)*\]|/(?:[^/\\\n]|\\.)*/|(?:#|//)[^\n]*')
_ANNOTATIONS = ("title", "description", "$comment", "examples", "default", "$schema", "$id", "deprecated")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("const", "enum")


def grammar_bytes(text: str) -> int:
    """Return the most bytes that a grammar takes. text: in GBNF, or in llguidance's syntax"""
    n_literal = sum(len(found[1] or "") for found in _QUOTING.finditer(text))
    return n_literal * IN_A_ROW + (len(text) - n_literal) * PATTERN


def schema_bytes(schema: Any) -> int:
    """Return the most bytes that a JSON schema takes."""
    if isinstance(schema, list):
        return sum(map(schema_bytes, schema))
    if not isinstance(schema, Mapping):
        return len(json.dumps(schema)) * ELSE
    return sum(_keyword_bytes(key, value) for key, value in schema.items() if key not in _ANNOTATIONS)


def check_size(n_bytes: int, name: str) -> None:
    """Raise GrammarError for a grammar that may take more bytes than are planned for one."""
    if n_bytes > GRAMMAR_BYTES:
        raise GrammarError(
            f"{name} may take {n_bytes / MIB:.1f} MiB, but {GRAMMAR_BYTES // MIB} MiB are planned for a grammar; give "
            f"one of {GRAMMAR_BYTES / n_bytes:.0%} of that length, or with shorter texts that replies say as they are"
        )


def _keyword_bytes(key: str, value: Any) -> int:
    n_key = (len(key) + 4) * ELSE
    if key in _BY_NAME and isinstance(value, Mapping):  # a property may have the name of a keyword
        return n_key + sum((len(name) + 4) * ELSE + schema_bytes(it) for name, it in value.items())
    if key in _VALUES:
        texts = [json.dumps(it) for it in (value if key == "enum" and isinstance(value, list) else [value])]
        longest = max(map(len, texts), default=0)
        return n_key + longest * IN_A_ROW + (sum(map(len, texts)) - longest) * ELSE
    if key == "pattern" and isinstance(value, str):
        return n_key + len(value) * PATTERN
    return n_key + schema_bytes(value)
