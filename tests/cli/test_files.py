"""Names of texts as people type them: several words after one -f, folders, patterns, quotes."""

from __future__ import annotations

import json
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


def prompt_tokens(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["prompt_tokens"]


@pytest.mark.usefixtures("folder")
def test_the_model_is_told_the_names_of_several_files(model):
    """One file has their texts, each below its name."""
    Path("both.md").write_text("[file a.txt]\none\n\n[file src/README.md]\nthree")
    line = ["ask", "-m", model, *SMALL, *REPLY, "Which file?", "--json", "-f"]
    assert prompt_tokens(run_here(*line, "a.txt", "src/README.md")) == prompt_tokens(run_here(*line, "both.md"))
    seen = run_here("inspect", "-m", model, *SMALL, "Which file?", "--json", "--no-keys", "-f", "a.txt", "b c.txt")
    assert "[file a.txt]\none\n\n[file b c.txt]\ntwo\n\n" in "".join(json.loads(seen.stdout)["pieces"])
    seen = run_here("inspect", "-m", model, *SMALL, "--json", "--no-keys", "-f", "a.txt", "b c.txt")
    assert "".join(json.loads(seen.stdout)["pieces"]).strip() == "onetwo"  # plain texts have no names


@pytest.mark.usefixtures("folder")
def test_empty_files_are_left_out_where_there_are_others(model):
    Path("blank.py").write_text(" \n")
    Path("blank.html").write_text("<p> </p>")
    line = ["ask", "-m", model, *SMALL, *REPLY, "What?", "--json", "-f"]
    many = run_here(*line, "src/**/*.py", "blank.py", "blank.html")
    assert prompt_tokens(many) == prompt_tokens(run_here(*line, "src/sub/m.py", "src/sub/own.py"))
    assert "left out, because nothing is in them: src/empty.py, blank.py, blank.html\n" in many.stderr
    talk = run_here("chat", "-m", model, *SMALL, *REPLY, stdin="/read *.txt blank.py\n/read blank.py\n")
    assert "left out, because nothing is in them: blank.py\n" in talk.stderr
    assert "blank.py holds nothing but blanks; give" in talk.stderr


BROKEN = {
    "empty.txt": (b"", "empty.txt holds nothing; give"),
    "zero.bin": (b"a\0b", "zero.bin is not text: byte 1 is 0"),
    "late.bin": (b"a" * (1 << 15) + b"\0", "late.bin is not text: byte 32768 is 0"),
    "old.rtf": (b"{\\rtf1 417}", "old.rtf is a file in RTF, which is not read; save it"),
    "latin.txt": (("d\u00e9j\u00e0 vu. " * 40).encode("cp1252"), "latin.txt is not UTF-8 text at "),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize(
    "command",
    [["ask", "What?"], ["read", "--save", "x"], ["complete", "On"], ["inspect"], ["chat"]],
    ids=lambda it: it[0],
)
def test_files_are_checked_before_the_model_is_loaded(command, name):
    content, told = BROKEN[name]
    Path(name).write_bytes(content)
    ended = run_here(*command, "-m", "no-such-model", "-f", name, stdin=None)
    assert (ended.returncode, told in ended.stderr) == (2, True), ended.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("options", [[], ["--isolated"]], ids=["here", "isolated"])
def test_bytes_that_are_no_text_are_told_once(model, options, capfd):
    Path("bad.log").write_bytes(b"the key is 417\n" * 20 + b"\xff")
    ended = run_here("ask", "-m", model, *SMALL, *REPLY, *options, "-f", "bad.log", "What?")
    assert ended.returncode == 0
    assert (ended.stderr + capfd.readouterr().err).count("bad.log is not UTF-8 text at 1 place") == 1


@pytest.mark.usefixtures("folder")
def test_a_folder_brings_what_can_be_read(capsys):
    Path("src/old.rtf").write_bytes(b"{\\rtf1 417}")
    Path("src/.gitignore").unlink()
    Path("src/run.log").write_bytes(b"12:00 key 417\n" * 600 + b"\xff")
    found = names("src")
    assert "src/run.log" in found
    assert "src/old.rtf" not in found
    assert "old.rtf" in capsys.readouterr().err


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
    files = {"a.txt": "one", "src/README.md": "three", "src/kept.log": "four", "src/sub/m.py": "five é"}
    first = "\n\n".join(f"[file {name}]\n{text}" for name, text in files.items())
    assert f"{first}\n\n{INSTRUCTION} Hello there" in said
    second = "\n\n".join(
        f"[file {name}]\n{text}" for name, text in (("b c.txt", "two"), ("a.txt", "one"), ("b c.txt", "two"))
    )
    assert f"{second}\n\n{INSTRUCTION} And now?" in said
    refused = run_here("chat", "-m", model, *SMALL, "-f", "nix.txt")
    assert (refused.returncode, "'nix.txt' is not a file" in refused.stderr) == (2, True)
