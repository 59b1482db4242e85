"""Every `edgekv` command on README and the pages is parsed as it stands there, and run with a tiny model.

A page's blocks of code are scripts of a shell. The few commands that cannot run here are named, each with its reason.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer.main
from children import LIMIT_S
from document_files import paragraph, pdf_of, write_docx, write_epub
from forked_commands import commands_in, end_servers

from edgekv.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROMPT = re.compile(r"^    (?:\$ )?(?:[A-Z_]+=\S+ )*(?:uv run )?edgekv (.+)$")
SYNOPSIS = " [--"  # a line that lists options is no command

# commands that are parsed alone, and why
UNRUN = {
    r"edgekv bench|python (-m )?bench|python tests/stress|pytest|eval.* --(memory|workers)": "takes minutes",
    r"edgekv pull|edgekv models --suggest|hf:|uv (venv|pip)": "a download; tests/hub has a hub of its own",
    r"--cluster": "a cluster; tests/batch/test_workers.py makes one",
    r"--rpc \d": "other machines; tests/runtime/test_rpc_split.py plays them",
    r"onnx:": "a graph; tests/unit/test_onnx.py makes some",
    r"gpt-oss-20b": "a model of gigabytes",
    r"^dist/": "a packaged program; tests/desktop makes it",
    r"BUILD|build/vulkan|scripts/": "a build of its own, a GPU, or a download",
}
# programs of others, which do nothing in these scripts
OTHERS = {
    "pip": "a download; tests/cli/test_wheel.py installs the wheel",
    "apt-get": "a download",
    "cc": "tests/native/test_c_example.py compiles the example",
    "cmake": "tests/native/test_c_example.py compiles the example",
    "ask": "tests/native/test_c_example.py runs the example",
    "dask": "tests/batch/test_workers.py starts a cluster",
    "lm_eval": "tests/server/clients has it",
    "claude": "tests/server/clients has its requests",
    "aider": "tests/server/clients has its requests",
    "pyinstaller": "tests/cli/test_packaged.py packages the command line",
}
DEAR = {"evaluation", "evaluation-tasks", "inspect"}  # pages that take more than some seconds, and all results
SCRIPT = re.compile(rf"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:edgekv|uv|python|curl|export|{'|'.join(OTHERS)}) ")
TEXT = "Dorothy lived in the midst of the great Kansas prairies, with Uncle Henry and Aunt Em. " * 6
BOOK = " ".join(f"On day {i} Dorothy told Toto of road number {i}." for i in range(100))
MODEL = {"n_layer": 2, "n_ctx_train": 8192, "head_dim": 32, "tokenizer": "code"}  # it fills gaps
DEEP = {"inspect": 13}  # pages that name a layer, and the layers of their model
MODELS = ("MODEL", "QWEN", "GEMMA", "mine.gguf", "path/to/model.gguf")
BOOKS = ("WAR_AND_PEACE", "BOOK", "PRIDE_AND_PREJUDICE", "SHERLOCK_HOLMES", "novel.txt", "book.txt", "TEXT")
TEXTS = ("examples/oz.txt", "oz.txt", "src/code.py", "notes/one.md", "notes/two.md", "papers/one.txt")

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")


def commands(page):
    """Return a match for each command in a page's blocks of code, with its arguments."""
    lines = page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [found for line in lines if (found := PROMPT.match(line)) and SYNOPSIS not in line]


CASES = [(page, line) for page in PAGES for line in dict.fromkeys(found[1] for found in commands(page))]


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


def scripts(page):
    """Return the scripts of a page: blocks of commands, and consoles that show a command with what is typed into it."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt()
    blocks = (it.content for it in markdown.parse(page.read_text("utf-8")) if it.type in ("code_block", "fence"))
    found = (script(block.replace("\\\n", " ").splitlines()) for block in blocks if SCRIPT.match(block))
    return [script for script in found if script]


def script(lines):
    """Return the commands of a block, without those that cannot run here."""
    if not lines[0].startswith("$ "):
        return "\n".join(line for line in lines if line and runs(line))
    typed = [line[2:] for line in lines if line.startswith("> ")]
    given = "".join(f"\n{line}" for line in ["<<'END'", *typed, "END"]) if typed else ""
    return "\n".join(line[2:] + given.replace("\n", " ", 1) for line in lines if line.startswith("$ ") and runs(line))


def runs(line):
    return SYNOPSIS not in line and not any(re.search(pattern, line) for pattern in UNRUN)


def is_dear(page):
    return page.stem in DEAR or page.parent.name == "results"


WITH_SCRIPTS = [page for page in PAGES if scripts(page)]


def test_scripts_are_commands_alone():
    """Find output that stands in a block of commands: a shell would run it, and `yes` never ends."""
    texts = {page.name: [text for text in scripts(page) if "<<'END'" not in text] for page in WITH_SCRIPTS}
    lines = [(name, line) for name, found in texts.items() for text in found for line in text.splitlines()]
    assert [(name, line) for name, line in lines if not SCRIPT.match(f"{line} ")] == []


@pytest.mark.parametrize("page", sorted({page for page, _ in CASES}), ids=lambda page: page.stem)
def test_a_command_is_run_or_has_its_reason(page):
    together = spaced("\n".join(scripts(page)))
    left = [found[0] for found in commands(page) if runs(found[0]) and spaced(found[1]) not in together]
    assert left == []


def spaced(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def shared_programs(tiny_model, tmp_path_factory):
    """A folder for PATH in which `edgekv` answers with a tiny model."""
    if sys.platform != "linux":
        pytest.skip("forks a process that has imported the command line")
    with commands_in(tmp_path_factory.mktemp("programs"), tiny_model(**MODEL), OTHERS) as folder:
        yield folder


@pytest.fixture
def programs(shared_programs):
    """Yield the folder for PATH; servers end with the page that started them."""
    yield shared_programs
    end_servers(shared_programs.parent)


@pytest.fixture
def here(tiny_model, tmp_path):
    """A folder with the files that pages name."""
    for name, text in (*((name, BOOK) for name in BOOKS), *((name, TEXT) for name in TEXTS)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in MODELS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(tiny_model(**MODEL))
    for name in ("LICENSE", "docs/results", "examples/questions.jsonl", "examples/questions.txt"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "examples" / "questions.jsonl", tmp_path)
    (tmp_path / "models" / "known_shares").mkdir(parents=True)
    (tmp_path / "requests.jsonl").write_text(
        '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "It is", "max_tokens": 5}}\n'
    )
    (tmp_path / "book.pdf").write_bytes(pdf_of([["Dorothy inherits the house."]]))
    write_docx(tmp_path / "report.docx", paragraph("Dorothy reports."))
    write_epub(tmp_path / "novel.epub", ["<p>Dorothy went home.</p>"])
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.nightly if is_dear(page) else (), id=page.stem) for page in WITH_SCRIPTS],
)
def test_commands_run_as_they_stand(programs, here, tiny_model, page):
    own = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(here), "XDG_DATA_HOME": str(here)}
    environment = os.environ | own | {"EDGEKV_THREADS": "1"}
    if page.stem in DEEP:
        environment["EDGEKV_MODEL"] = str(tiny_model(**MODEL | {"n_layer": DEEP[page.stem]}))
    for text in scripts(page):
        done = subprocess.run(
            ["sh", "-ec", text],
            cwd=here,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
