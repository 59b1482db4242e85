"""Docstrings start with a verb or a noun, and comments are sentences or nouns, so that both are read once."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("edgekv", "cli", "models", "native", "scripts", "examples", "tests", "bench")
PRONOUN = re.compile(r"(What|Whether|How|Who|Whose|Why|Where|Which|Those|They|It|Its|Their|That|This|These|The same)\b")
FRAGMENT = re.compile(r"(of|that|which|whose|where|so|and|but|as|with|for|in|to|than|or)\b")
PERHAPS = re.compile(rf"#[# ]*{FRAGMENT.pattern}")  # the tokeniser takes longer than all else here
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def unclear(source):
    """Return the docstrings of a module that start with a pronoun, and its comments that start as fragments."""
    found = [
        text.splitlines()[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) and PRONOUN.match(text)
    ]
    after = 0  # the line below a comment, where it may go on
    if not PERHAPS.search(source):
        return found
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            goes_on, alone = line == after, not token.line[:column].strip()
            after = line + 1 if alone else 0
            text = token.string.lstrip("# ")
            if not (goes_on and alone) and FRAGMENT.match(text):
                found.append(text)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_comments_can_be_read_once(room):
    modules = [path for path in (ROOT / room).rglob("*.py") if "build" not in path.parts]
    assert modules
    assert {str(path): lines for path in modules if (lines := unclear(path.read_text(encoding="utf-8")))} == {}


def test_pronouns_and_fragments_are_found():
    docstring = '"""What is said."""\nx = 1  # of the first\n'
    comment = "# A sentence that goes on\n# in the next line.\n"
    assert unclear(docstring + comment) == ["What is said.", "of the first"]
    assert unclear("x = 1\n# of that\n") == ["of that"]
