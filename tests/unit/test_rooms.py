"""The order of the rooms in `edgekv/`: the check finds an import that runs upwards, and a circle."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import LIMIT_S

pytest.importorskip("importlinter")

ROOT = Path(__file__).resolve().parents[2]
TREES = ("edgekv", "models", "cli")


def check(checkout):
    command = [sys.executable, ROOT / "scripts" / "check_rooms.py", checkout]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture
def checkout(tmp_path):
    """A copy of what is checked, to plant imports in."""
    for name in TREES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def plant(module, line):
    module.write_text(module.read_text() + f"\n{line}\n")


def test_imports_run_downwards():
    checked = check(ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_import_from_above_is_found(checkout):
    plant(checkout / "edgekv" / "planning" / "choice.py", "from edgekv.cells.memory_guard import MemoryGuard")
    checked = check(checkout)
    assert checked.returncode == 1
    assert "edgekv.planning.choice -> edgekv.cells.memory_guard" in checked.stdout


def test_a_circle_within_a_room_is_found(checkout):
    plant(checkout / "edgekv" / "planning" / "estimate.py", "from .infeasible import infeasible_error")
    checked = check(checkout)
    assert checked.returncode == 1
    assert "No cycles are allowed in edgekv.planning" in checked.stdout


def test_a_room_without_a_place_is_found(checkout):
    shutil.copytree(checkout / "edgekv" / "prompt", checkout / "edgekv" / "loose")
    assert check(checkout).returncode == 1
