"""Rehearsing an upgrade of llama.cpp: hunks that moved are found and renewed, and others are reported."""

from __future__ import annotations

import importlib.util
import io
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = [f"int line{i};" for i in range(1, 41)]
PATCH = """\
It adds lines.

--- a/src/llama.cpp
+++ b/src/llama.cpp
@@ -9,2 +9,3 @@
 int line9;
+int first;
 int line10;
@@ -29,2 +30,3 @@
 int line29;
+int second;
 int line30;
"""


@pytest.fixture
def rehearse(monkeypatch, tmp_path):
    """The script as a module, over one patch."""
    spec = importlib.util.spec_from_file_location("rehearse_upgrade", ROOT / "scripts" / "rehearse_upgrade.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rehearse_upgrade", module)
    spec.loader.exec_module(module)
    fetch = module.fetcher()
    monkeypatch.setattr(module, "fetcher", lambda: fetch)
    (tmp_path / "native" / "patches").mkdir(parents=True)
    (tmp_path / "native" / "patches" / "0001-lines.patch").write_text(PATCH)
    monkeypatch.setattr(module, "NATIVE", tmp_path / "native")
    return module


def release(path, lines):
    content = ("\n".join(lines) + "\n").encode()
    member = tarfile.TarInfo("llama_cpp_python-0.0/vendor/llama.cpp/src/llama.cpp")
    member.size = len(content)
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(member, io.BytesIO(content))
    return path


def places(rehearse, tmp_path, lines):
    found, renewed = rehearse.rehearse(release(tmp_path / "release.tar.gz", lines), tmp_path / "source")
    return [at for _, at in found], renewed["0001-lines.patch"]


def test_hunks_of_the_pinned_release_are_in_place(rehearse, tmp_path):
    assert places(rehearse, tmp_path, LINES)[0] == [9, 29]
    assert "int first;" in (tmp_path / "source/vendor/llama.cpp/src/llama.cpp").read_text()


def test_moved_hunks_are_renewed_so_that_the_build_applies_them(rehearse, tmp_path):
    pytest.importorskip("patch_ng")
    found, renewed = places(rehearse, tmp_path, ["int new;", *LINES[:20], "int newer;", *LINES[20:]])
    assert found == [10, 31]
    fetch = rehearse.fetcher()
    again = tmp_path / "again"
    fetch.unpack(tmp_path / "release.tar.gz", again)
    (tmp_path / "renewed.patch").write_text("\n".join(renewed) + "\n")
    fetch.apply(tmp_path / "renewed.patch", again)
    patched = (again / "vendor/llama.cpp/src/llama.cpp").read_text().split("\n")
    assert (patched[10], patched[32]) == ("int first;", "int second;")


def test_a_hunk_whose_lines_changed_fails_alone(rehearse, tmp_path):
    changed = [line.replace("int line30;", "long line30;") for line in LINES]
    assert places(rehearse, tmp_path, changed)[0] == [9, None]


def test_a_hunk_that_fits_in_two_places_fails(rehearse, tmp_path):
    assert places(rehearse, tmp_path, ["int new;", "int other;", *LINES, *LINES])[0] == [None, None]
