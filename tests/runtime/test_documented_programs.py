"""Programs in Python on README and the pages for users run as they stand there, with a tiny model for the default one.

A page's programs share their names. `rt`, `session` and what pages take for granted are made anew for each.
"""

from __future__ import annotations

import ast
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from small import words

import edgekv
from edgekv.generation.request import GenerationRequest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# programs that need more than a model, and the tests of what they do
ELSEWHERE = {
    "batch.md": "tests/batch/test_workers.py",
    "benchmark.md": "tests/evals/test_speed.py",
    "custom-scorers.md": "tests/unit/test_custom.py",
    "devices.md": "tests/runtime/test_rpc_split.py",
    "moving-ceiling.md": "tests/runtime/test_moving_ceiling.py",
    "pull.md": "tests/hub/test_download.py",
    "server.md": "tests/server/clients",
    "server-api.md": "tests/server/clients",
    "testing.md": "tests/memory/test_pytest_plugin.py",
}
DEAR = {"evaluation-tasks.md", "inspect.md"}  # they take 15 and 7 s
ABOUT = {"edgekv", "rt", "session", "scoring", "client", "pytest", "memory_ceiling"}  # names of which programs have one


def programs(page):
    """Return the programs of a page: its blocks of code that Python parses, and that use edgekv or its objects."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt()
    blocks = (it.content for it in markdown.parse(page.read_text("utf-8")) if it.type in ("code_block", "fence"))
    return [block for block in blocks if names_in(block) & ABOUT]


def names_in(block):
    """Return the names that a block of Python uses; none of another block."""
    try:
        nodes = list(ast.walk(ast.parse(block)))
    except SyntaxError:
        return set()
    imported = (it.module or "" for it in nodes if isinstance(it, ast.ImportFrom))
    imported = (*imported, *(alias.name for it in nodes if isinstance(it, ast.Import) for alias in it.names))
    return {it.id for it in nodes if isinstance(it, ast.Name)} | {name.partition(".")[0] for name in imported}


WITH_PROGRAMS = [page for page in PAGES if programs(page)]


@pytest.fixture(scope="module")
def here(tiny_model, tmp_path_factory):
    """A folder with the texts that programs read; the default model is a tiny one, with memory enough for this process.

    It has the thirteen layers that a program looks at.
    """
    path = tiny_model(n_layer=13, n_ctx_train=8192, head_dim=32)
    folder = tmp_path_factory.mktemp("here")
    (folder / "examples").mkdir()
    for name in ("oz.txt", "novel.txt", "examples/oz.txt"):
        (folder / name).write_text("Dorothy lived in the midst of the great Kansas prairies. " * 6)
    opened = edgekv.Runtime
    roomy = {"memory": "4GiB", "threads": 1}
    with (
        mock.patch("edgekv.models.catalog._known_file", return_value=path),
        mock.patch.object(edgekv, "Runtime", lambda *model, **given: opened(*model, **given | roomy)),
    ):
        yield folder


@pytest.fixture
def curt(monkeypatch):
    """Replies of five tokens, but for those that follow a grammar: random weights know no end."""
    whole = GenerationRequest.most_tokens.fget
    most = property(lambda request: 5 if request.grammar is None else whole(request))
    monkeypatch.setattr(GenerationRequest, "most_tokens", most)


def granted(rt):
    """Return the names that pages take for granted."""
    messages = [{"role": "user", "content": "Who is Dorothy?"}]
    sessions = [rt.session(history=True) for _ in range(2)]
    for session in sessions:
        session.reply(messages)
    shared = rt.tokenize("Dorothy lived in Kansas.")
    return {
        "edgekv": edgekv,
        "json": json,
        "rt": rt,
        "session": rt.session(history=True),
        "sessions": sessions,
        "messages": messages,
        "shared": shared,
        "histories": [shared + rt.tokenize(text) for text in ("Who?", "Where?")],
        "questions": ["Who?", "Where?"],
        "text": words(3000),
        "ThreadPoolExecutor": ThreadPoolExecutor,
    }


@pytest.mark.usefixtures("curt")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.nightly if page.name in DEAR else (), id=page.name)
        for page in WITH_PROGRAMS
        if page.name not in ELSEWHERE
    ],
)
def test_programs_run_as_they_stand(here, monkeypatch, page):
    monkeypatch.chdir(here)
    names = {}
    with edgekv.Runtime(budget=256) as rt:
        for number, program in enumerate(programs(page)):
            names |= granted(rt)
            exec(compile(program, f"{page.name}, program {number}", "exec"), names)


def test_programs_that_run_elsewhere_are_there():
    assert {page.name for page in WITH_PROGRAMS} >= ELSEWHERE.keys()
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []
