"""examples/c, built from an installed wheel as its users build it: by pkg-config and by CMake."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wheel_environment import CHECKOUT, run

pytestmark = pytest.mark.nightly

EXAMPLE = CHECKOUT / "examples" / "c"
QUESTION = "What is the road to the City of Emeralds paved with?"
MIB = 1 << 20
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
LAUNCHER = CHECKOUT / "tests" / "memory" / "launcher.py"


def tool(*names):
    """The first tool that is installed; skips where none is."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


def with_pkg_config(folders, build):
    where = {"PKG_CONFIG_PATH": folders["pkg-config"]}
    flags = run(tool("pkg-config", "pkgconf"), "--cflags", "--libs", "edgekv", folder=build, env=where)
    run(tool("cc", "gcc", "clang"), "-std=c99", *WARNINGS, EXAMPLE / "ask.c", *flags.split(), "-o", "ask", folder=build)


def with_cmake(folders, build):
    tool("cc", "gcc", "clang")
    flags = f"-DCMAKE_C_FLAGS={' '.join(WARNINGS)}"
    run(tool("cmake"), "-S", EXAMPLE, "-B", build, f"-Dedgekv_DIR={folders['cmake']}", flags, folder=build)
    run(tool("cmake"), "--build", build, folder=build)


@pytest.fixture(scope="module")
def folders(environment):
    """Return the folders of the installed wheel that C programs look in, by kind."""
    kinds = ("lib", "cmake", "pkg-config")
    found = run(
        environment / "bin" / "python", "-m", "edgekv.config", *(f"--{kind}-dir" for kind in kinds), folder=environment
    )
    return dict(zip(kinds, found.split("\n"), strict=False))


@pytest.fixture(scope="module", params=[with_pkg_config, with_cmake], ids=["pkg-config", "cmake"])
def program(request, folders, tmp_path_factory):
    """Path of the example, built against the installed wheel."""
    build = tmp_path_factory.mktemp("c")
    request.param(folders, build)
    return build / "ask"


def ask(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="what the kernel counts is read in /proc")
def test_it_answers_under_the_ceiling(program, default_model):
    command = [program, default_model, CHECKOUT / "examples" / "oz.txt", QUESTION, 200]
    ended = json.loads(run(sys.executable, "-I", "-S", LAUNCHER, "pipes", 600, *command, folder=CHECKOUT))
    assert ended["status"] == 0
    assert "yellow brick" in ended["output"]
    n_tokens, own = re.search(r"(\d+) tokens read and said.* peak ([\d.]+) of 200.0 MiB", ended["output"]).groups()
    assert int(n_tokens) > 4000
    assert ended["peak_bytes"] <= 200 * MIB
    assert abs(ended["peak_bytes"] / MIB - float(own)) < 1


def test_an_answer_ends_its_line(program, default_model, tmp_path):
    note = tmp_path / "note.txt"
    note.write_text("The road to the City of Emeralds is paved with yellow brick.\n")
    ended = ask(program, default_model, note, QUESTION, 200)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
    assert ended.stdout.endswith("\n")


def test_what_fails_is_said_in_a_line(program, default_model, tmp_path):
    book, broken = CHECKOUT / "examples" / "oz.txt", tmp_path / "broken.gguf"
    empty = tmp_path / "empty.txt"
    empty.touch()
    broken.write_bytes(Path(default_model).read_bytes()[:100_000])
    cases = [
        ([], "usage: ask MODEL TEXT QUESTION [MIB]"),
        ([default_model, tmp_path / "none.txt", QUESTION], "the text cannot be read, or is empty; give another file"),
        ([default_model, tmp_path, QUESTION], "the text cannot be read, or is empty"),
        ([default_model, empty, QUESTION], "the text cannot be read, or is empty"),
        ([tmp_path / "none.gguf", book, QUESTION], "none.gguf is refused: "),
        ([broken, book, QUESTION], "broken.gguf is refused: "),
        ([default_model, book, QUESTION, 50], "does not hold SmolLM2"),
        ([default_model, book, "why " * 500], "the question has more than 50 words or so"),
    ]
    for arguments, message in cases:
        done = ask(program, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert message in done.stderr


def test_the_folder_may_lie_anywhere(folders, tmp_path):
    moved = shutil.copytree(folders["lib"], tmp_path / "moved")
    with_pkg_config({"pkg-config": str(moved / "pkgconfig")}, tmp_path)
    assert str(moved) in run("ldd", tmp_path / "ask", folder=tmp_path)


def test_it_is_a_page():
    assert len((EXAMPLE / "ask.c").read_text().splitlines()) < 150
