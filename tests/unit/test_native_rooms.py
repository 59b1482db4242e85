"""The order of the rooms in `native/src`: the check finds includes that run upwards, and patches that call too high."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


def check(checkout):
    command = [sys.executable, ROOT / "scripts" / "check_native_rooms.py", checkout]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture
def native(tmp_path):
    """A copy of what is checked, to plant includes in."""
    for name in ("src", "patches"):
        shutil.copytree(ROOT / "native" / name, tmp_path / "native" / name)
    shutil.copy(ROOT / "native" / "README.md", tmp_path / "native")
    return tmp_path / "native"


def test_includes_run_downwards():
    checked = check(ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_include_from_above_is_found(native):
    rooms = re.findall(r"^\| `src/(\w+)/`", (native / "README.md").read_text(), re.MULTILINE)
    for above, room in itertools.pairwise(rooms):
        source = next((native / "src" / room).glob("*.cpp"))
        header = next(iter(sorted((native / "src" / above).glob("*.h"))))
        text = source.read_text()
        source.write_text(f'#include "{above}/{header.name}"\n{text}')
        checked = check(native.parent)
        assert checked.returncode == 1
        assert f"src/{room}/{source.name} includes {above}/{header.name}, which lies above it" in checked.stdout
        source.write_text(text)


def test_a_patch_that_calls_past_the_hooks_is_found(native):
    patch = native / "patches" / "0001-planted.patch"
    patch.write_text(
        '--- a/src/llama.cpp\n+++ b/src/llama.cpp\n@@ -1 +1,2 @@\n #include "llama.h"\n+#include "cache/cache.h"\n'
    )
    checked = check(native.parent)
    assert checked.returncode == 1
    assert "patches/0001-planted.patch includes cache/cache.h" in checked.stdout


def test_a_room_without_a_place_is_found(native):
    (native / "src" / "loose").mkdir()
    checked = check(native.parent)
    assert checked.returncode == 1
    assert "src/loose: the table of README.md does not list it" in checked.stdout
