"""Programs in Python on README and the pages for users run as they stand there, with a tiny model for the default one.

A page's programs share their names. `rt`, `session` and what pages take for granted are made anew for each. Clients of
a server run in a process of their own, which imports their packages, and tests of a user's in a run of pytest.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import pytest
from children import LIMIT_S
from hub_server import serving
from lent_device import lent_device
from small import words

import edgekv
from edgekv.generation.request import GenerationRequest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# pages whose programs need more than a model, and the fixtures that bring it
SURROUNDINGS = {
    "batch.md": "requests_file",
    "benchmark.md": "measured_here",
    "custom-scorers.md": "scorers",
    "devices.md": "lent",
    "pull.md": "hub",
}
# they take more than a second
DEAR = {"batch.md", "benchmark.md", "evaluation-tasks.md", "inspect.md", "isolated.md", "replies.md"}
# names of which a program has one, by what runs it; the first that fits does
TESTS = {"pytest", "memory_ceiling"}
CLIENTS = {"openai", "anthropic", "langchain_openai", "client"}
OTHERS = {"edgekv", "rt", "session", "scoring"}
# clients find the server at its own port in place of the one that pages name
ASK_SERVER = """
import socket
connect = socket.create_connection
socket.create_connection = lambda address, *given, **further: connect(("127.0.0.1", {port}), *given, **further)
from openai import OpenAI
client = OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
"""
TEXT = "Dorothy lived in the midst of the great Kansas prairies. " * 6


def programs(page, kind):
    """Return the programs of a page: its blocks of code that Python parses, and that have a name of this kind first."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt()
    blocks = (it.content for it in markdown.parse(page.read_text("utf-8")) if it.type in ("code_block", "fence"))
    return [block for block in blocks if kind is kind_of(names_in(block))]


def kind_of(names):
    return next((kind for kind in (TESTS, CLIENTS, OTHERS) if names & kind), None)


def names_in(block):
    """Return the names that a block of Python uses; none of another block."""
    try:
        nodes = list(ast.walk(ast.parse(block)))
    except SyntaxError:
        return set()
    imported = (it.module or "" for it in nodes if isinstance(it, ast.ImportFrom))
    imported = (*imported, *(alias.name for it in nodes if isinstance(it, ast.Import) for alias in it.names))
    return {it.id for it in nodes if isinstance(it, ast.Name)} | {name.partition(".")[0] for name in imported}


def pages_with(kind):
    """Return a parameter for each page that has programs; dear ones run nightly."""
    found = (page for page in PAGES if programs(page, kind))
    return [pytest.param(it, marks=pytest.mark.nightly if it.name in DEAR else (), id=it.name) for it in found]


@pytest.fixture(scope="module")
def here(tiny_model, tmp_path_factory):
    """A folder with the texts that programs read; the default model is a tiny one, with memory enough for this process.

    It has the thirteen layers that a program looks at.
    """
    path = tiny_model(n_layer=13, n_ctx_train=8192, head_dim=32)
    folder = tmp_path_factory.mktemp("here")
    (folder / "examples").mkdir()
    for name in ("oz.txt", "novel.txt", "examples/oz.txt"):
        (folder / name).write_text(TEXT)
    open_runtime, opened = edgekv.Runtime, []

    def open_here(*model, **given):
        opened.append(open_runtime(*model, **given | {"memory": "4GiB", "threads": 1}))
        return opened[-1]

    with (
        mock.patch("edgekv.models.catalog._known_file", return_value=path),
        mock.patch.object(edgekv, "Runtime", open_here),
    ):
        yield folder
    for runtime in opened:  # a page need not close what the next page takes the place of
        runtime.close()


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


@pytest.fixture
def requests_file(here):
    """A file of requests for a batch."""
    body = {"prompt": "Dorothy", "max_tokens": 5}
    lines = ({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body} for name in "ab")
    (here / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))


@pytest.fixture
def measured_here(monkeypatch):
    """Cases of speed are measured in this process, which has the tiny model, with at most 500 characters."""

    def measured(work, case, text):
        return work(case, text[:500]) | {"peak_bytes": 1}

    monkeypatch.setattr("edgekv.evals.speed.in_fresh_process", measured)


@pytest.fixture
def scorers():
    """Take away the scorers that a page registers."""
    yield
    edgekv.policies.unregister("mine")


@pytest.fixture
def lent(here, monkeypatch):
    """A server that lends a device has the address that a page names."""
    opened = edgekv.Runtime

    def over(*model, rpc=(), device_memory=None, **given):
        sizes = dict.fromkeys([address], *device_memory.values()) if device_memory else None
        return opened(*model, rpc=[address for _ in rpc], device_memory=sizes, **given)

    with lent_device() as (address, _):
        monkeypatch.setattr(edgekv, "Runtime", over)
        yield


@pytest.fixture
def hub(here, monkeypatch, tiny_model):
    """A hub with the model that a page names."""
    pytest.importorskip("huggingface_hub")
    with serving() as hub:
        hub.repos["OWNER/MODEL"] = {"tiny-Q4_K_M.gguf": tiny_model(n_layer=2).read_bytes()}
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(here / "cache"))
        yield


@pytest.mark.usefixtures("curt")
@pytest.mark.parametrize("page", pages_with(OTHERS))
def test_programs_run_as_they_stand(here, monkeypatch, request, page):
    monkeypatch.chdir(here)
    if page.name in SURROUNDINGS:
        request.getfixturevalue(SURROUNDINGS[page.name])
    names = {}
    with edgekv.Runtime(budget=256) as rt:
        for number, program in enumerate(programs(page, OTHERS)):
            names |= granted(rt)
            exec(compile(program, f"{page.name}, program {number}", "exec"), names)


@pytest.mark.nightly  # importing the clients takes 5 s of the processor
@pytest.mark.usefixtures("curt")
def test_clients_run_as_they_stand(here):
    for package in ("starlette", "openai", "anthropic", "langchain_openai"):
        pytest.importorskip(package)
    from http_server import served

    from edgekv.server import app

    application = app(memory="4GiB", budget=256, threads=1)
    with served(application) as address:
        whole = [program for page in PAGES for program in programs(page, CLIENTS)]
        assert len(whole) >= 4
        run_program("-c", "\n".join([ASK_SERVER.format(port=urlsplit(address).port), *whole]), folder=here)
    application.close()


@pytest.mark.nightly
@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("page", pages_with(TESTS))
def test_tests_pass_as_they_stand(tmp_path, page):
    for name in ("oz.txt", "short.txt", "long.txt"):
        (tmp_path / name).write_text("Dorothy lived in Kansas.")
    (tmp_path / "app.py").write_text("print('Kansas')\n")
    (tmp_path / "work.py").write_text("def answer(path):\n    return 'Kansas'\n")
    given = "import edgekv, pytest\nfrom work import answer\n"
    (tmp_path / "test_page.py").write_text("\n".join([given, *programs(page, TESTS)]))
    run_program("-m", "pytest", "-p", "no:pytest-qt", "-p", "no:langsmith_plugin", "test_page.py", folder=tmp_path)


def run_program(*arguments, folder):
    """Run Python in a folder, and show what it says if it fails."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
