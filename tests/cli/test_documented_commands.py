"""Every `edgekv` command on README and the pages for users is one that the command line parses as it stands there."""

from __future__ import annotations

import glob
import re
import shlex
from pathlib import Path

import click
import pytest
import typer.main

from edgekv.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROMPT = re.compile(r"^    (?:\$ )?(?:[A-Z_]+=\S+ )*(?:uv run )?edgekv (.+)$")
SYNOPSIS = " [--"  # a line that lists options is no command

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")


def commands(page):
    """Return the arguments of each command in a page's blocks of code."""
    lines = page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [found[1] for line in lines if (found := PROMPT.match(line)) and SYNOPSIS not in line]


CASES = [(page, line) for page in PAGES for line in dict.fromkeys(commands(page))]


def words(line):
    """Return the words of a command up to a pipe, a redirection or a comment, with patterns spelt out as by a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split = True
    found = list(lexer)
    ends = [i for i, word in enumerate(found) if word[0] in "|<>;&"]
    own = found[: ends[0]] if ends else found
    return [path for word in own for path in (glob.glob(word) or [word])]


@pytest.mark.parametrize(("page", "line"), CASES, ids=[f"{page.name}: {line}" for page, line in CASES])
def test_a_command_is_parsed(tmp_path, monkeypatch, page, line):
    for file in ("src/code.py", "notes/one.md", "notes/two.md"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    arguments, command = words(line), typer.main.get_command(app)
    parents = None
    while isinstance(command, click.Group):
        parents = command.make_context("edgekv", arguments, parent=parents)
        arguments = [*parents._protected_args, *parents.args]
        name, command, arguments = command.resolve_command(parents, arguments) if arguments else ("", None, [])
    if command is not None:
        command.make_context(name, arguments, parent=parents)


def test_there_are_commands_on_many_pages():
    assert len({page for page, _ in CASES}) > 15
