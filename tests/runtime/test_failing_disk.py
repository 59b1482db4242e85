"""Streamed weights on a disk that fails or is slow: a typed error, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from children import LIMIT_S

import edgekv
from edgekv.testing.models.families import make_family
from edgekv.testing.server_process import serving

OPTIONS = {"memory": "1GiB", "budget": 64, "block": 32, "recent": 16, "threads": 2, "probe_tokens": 16, "resident": 0}
TEXT = "the old house by the river stood empty since the flood of that year " * 8
SOURCE = Path(__file__).with_name("failing_disk.c")


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """The environment of programs whose disk does what the file says that it names."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("a library that is loaded before the C library needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("disk")
    subprocess.run([compiler, "-shared", "-fPIC", SOURCE, "-o", folder / "disk.so", "-ldl"], check=True)
    return os.environ | {"LD_PRELOAD": str(folder / "disk.so"), "FAILING_DISK": str(folder / "word")}


def told(word):
    """Have the disk of this process's children, or its own, do what a word says."""
    Path(os.environ["FAILING_DISK"]).write_text(word)


def check_replies(path, *, isolated):
    """Four replies fail; then the disk is slow, and then well: the session says what others say."""
    told("well")
    options = OPTIONS | {"isolated": isolated}
    with edgekv.Runtime(path, **options) as rt, rt.session() as session, rt.session() as other:
        for reader in (session, other):
            reader.read(TEXT)
        expected = ["".join(other.chat("Who?", max_tokens=6)) for _ in range(3)]
        seen, cells = session.n_past, session.n_cells
        for word in ("fail", "third", "fail", "third"):  # some of the pieces that are read at once are there
            told(word)
            with pytest.raises(
                edgekv.InvalidModelError, match="streamed weights cannot be read in the model's file: Input/output err"
            ):
                list(session.chat("Who?", max_tokens=6))
            assert (session.n_past, session.n_cells) == (seen, cells)
        told("slow")
        found = ["".join(session.chat("Who?", max_tokens=6))]
        told("well")
        found += ["".join(session.chat("Who?", max_tokens=6)) for _ in range(2)]
        assert found == expected


# a worker passes on whatever its weights raise, and experts are read by a way of their own: no pair is a third way
@pytest.mark.parametrize(
    ("name", "isolated"),
    [("smollm3", True), pytest.param("glm4moe", False, marks=pytest.mark.nightly)],
    ids=["worker", "experts"],
)
def test_a_disk_that_fails_loses_nothing(disk, tmp_path, name, isolated):
    path = make_family(tmp_path / "model.gguf", name)
    code = f"import sys; sys.path[:0] = {sys.path!r}; from test_failing_disk import check_replies; "
    code += f"check_replies({str(path)!r}, isolated={isolated})"
    ended = subprocess.run([sys.executable, "-c", code], env=disk, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.nightly
def test_a_server_says_that_the_disk_failed_and_goes_on(disk, tmp_path, monkeypatch):
    path = make_family(tmp_path / "model.gguf", "smollm3")
    for name in ("LD_PRELOAD", "FAILING_DISK"):
        monkeypatch.setenv(name, disk[name])
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 6, "temperature": 0}
    told("well")
    options = ["--model", str(path), "--memory", "1GiB", "--budget", "256", "--block", "32", "--resident", "0"]
    with serving([*options, "--threads", "1", "--no-focus"]) as server:  # rows that come back are read without a probe
        answers = []
        for word in ("well", "fail", "well"):
            told(word)
            answers.append(httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=LIMIT_S))
        well, failed, again = answers
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "model_unreadable")
        assert str(tmp_path) not in failed.text  # paths are its owner's affair
        said = [answer.json()["choices"][0]["message"]["content"] for answer in (well, again)]
        assert said[0] == said[1]
