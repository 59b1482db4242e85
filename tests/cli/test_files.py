"""Names of texts as people type them: several words after one -f, folders, patterns, quotes."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import SMALL, run_here

import edgekv
from edgekv.cli import files as module
from edgekv.cli.files import found_files, paths_in, with_flags
from edgekv.generation.request import INSTRUCTION

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

REPLY = ["--max-tokens", "4", "--temp", "0"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A source tree: texts, what git ignores, what is hidden, and what is no text."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "a.txt": b"one",
        "b c.txt": b"two",
        "src/.gitignore": b"*.log\nbuild/\n!kept.log\n",
        "src/README.md": b"three",
        "src/run.log": b"x",
        "src/kept.log": b"four",
        "src/build/out.txt": b"x",
        "src/.hidden/out.txt": b"x",
        "src/pic.png": b"\x89PNG\x00\xff",
        "src/empty.py": b"",
        "src/sub/.gitignore": b"/own.py\n",
        "src/sub/own.py": b"x",
        "src/sub/m.py": "five é".encode(),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def names(*given):
    return [path.as_posix() for path in found_files(map(Path, given))]


@pytest.mark.usefixtures("folder")
def test_a_folder_is_its_texts(capsys):
    assert names("src") == ["src/README.md", "src/kept.log", "src/sub/m.py"]
    assert "3 texts; no texts, and left out: " in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_lines_of_gitignore_that_are_no_patterns_ignore_nothing():
    with Path("src/.gitignore").open("a") as file:
        file.write("!\n[z-a]\nsub/m\\\n")
    Path("src/sub/.gitignore").unlink()
    Path("src/sub/.gitignore").symlink_to("nowhere")
    assert names("src") == ["src/README.md", "src/kept.log", "src/sub/m.py", "src/sub/own.py"]


@pytest.mark.usefixtures("folder")
def test_a_pattern_is_what_it_matches():
    assert names("*.txt") == ["a.txt", "b c.txt"]
    assert names("src/**/*.py") == ["src/empty.py", "src/sub/m.py", "src/sub/own.py"]  # named, and so not ignored
    assert names("-", "a.txt", "nothing.txt") == ["-", "a.txt", "nothing.txt"]
    Path("[x].txt").write_text("x")
    assert names("[x].txt") == ["[x].txt"]


@pytest.mark.usefixtures("folder")
def test_what_names_no_text_is_refused(monkeypatch):
    with pytest.raises(edgekv.InputError, match=r"'q/\*\.txt' matches no file"):
        names("q/*.txt")
    Path("empty").mkdir()
    with pytest.raises(edgekv.InputError, match=r"holds no text"):
        names("empty")
    monkeypatch.setattr(module, "MOST_FILES", 2)
    with pytest.raises(edgekv.InputError, match="more than 2 files; name fewer"):
        names("src")
    with pytest.raises(edgekv.InputError, match="more than 2 files; name fewer"):
        names("a.txt", "*.txt")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["-f", "a.txt", "b c.txt", "What?"], ["-f", "a.txt", "-f", "b c.txt", "What?"]),
        (["What?", "--file", "a.txt", "src", "--temp", "a.txt"], None),
        (["-f", "a.txt", "What?", "a.txt"], ["-f", "a.txt", "What?", "a.txt"]),
        (["-f", "a.txt", "--", "b c.txt"], ["-f", "a.txt", "--", "b c.txt"]),
        (["-f", "-", "a.txt", "What?"], ["-f", "-", "-f", "a.txt", "What?"]),
    ],
)
def test_several_words_after_one_f(words, flags):
    if flags is None:
        flags = ["What?", "--file", "a.txt", "-f", "src", "--temp", "a.txt"]
    assert list(with_flags(words)) == flags


@pytest.mark.usefixtures("folder")
def test_an_empty_word_is_no_folder(model):
    """A variable of a shell that is not set: the folder that one is in must not be read in its place."""
    told = run_here("ask", "-m", model, *SMALL, "-f", "", "What?").stderr
    assert told == "edgekv: -f is given an empty name; name a file, or leave -f out\n"
    assert list(with_flags(["-f", "a.txt", ""])) == ["-f", "a.txt", ""]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("b c.txt", ["b c.txt"]),
        ("'b c.txt' a.txt", ["b c.txt", "a.txt"]),
        ('"b c.txt"', ["b c.txt"]),
        (r"b\ c.txt", ["b c.txt"]),
        ("a.txt *.md", ["a.txt", "*.md"]),
        ("it's", ["it's"]),
        ("", []),
    ],
)
def test_paths_that_a_line_names(line, found):
    assert [str(path) for path in paths_in(line)] == found


@pytest.fixture
def model(tiny_model):
    return tiny_model(n_layer=2, n_ctx_train=2048)


@pytest.mark.usefixtures("folder")
def test_ask_reads_all_of_them(model):
    one = run_here("ask", "-m", model, *SMALL, *REPLY, "-f", "a.txt", "-f", "b c.txt", "-f", "src", "What?", "--json")
    many = run_here("ask", "-m", model, *SMALL, *REPLY, "-f", "a.txt", "b c.txt", "src", "What?", "--json")
    assert one.returncode == many.returncode == 0, many.stderr
    assert one.stdout.split('"prompt_tokens"')[1][:8] == many.stdout.split('"prompt_tokens"')[1][:8]


@pytest.mark.usefixtures("folder")
def test_a_chat_begins_with_files_and_a_message(model, tmp_path):
    lines = f"/read 'b c.txt' *.txt\n/read nix\n/read src\nAnd now?\n/save {tmp_path}/said.md\n"
    ended = run_here("chat", "-m", model, *SMALL, *REPLY, "-f", "a.txt", "src", "Hello there", stdin=lines)
    assert ended.returncode == 0, ended.stderr
    assert "src/sub/m.py goes with your message" in ended.stderr
    assert ended.stderr.count("b c.txt goes with your next message") == 2
    assert "'nix' is not a file" in ended.stderr
    assert "'src' is a folder; begin the chat with -f" in ended.stderr
    said = (tmp_path / "said.md").read_text()
    assert f"one\n\nthree\n\nfour\n\nfive é\n\n{INSTRUCTION} Hello there" in said
    assert f"two\n\none\n\ntwo\n\n{INSTRUCTION} And now?" in said
    refused = run_here("chat", "-m", model, *SMALL, "-f", "nix.txt")
    assert (refused.returncode, "'nix.txt' is not a file" in refused.stderr) == (2, True)
