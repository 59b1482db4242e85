"""Clients that tests install by npm or uv, and their versions. If one cannot be installed, its tests are skipped."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager

import pytest
from children import LIMIT_S

NPM = {
    "@ai-sdk/anthropic": "4.0.105",
    "@ai-sdk/openai": "4.0.118",
    "@ai-sdk/openai-compatible": "3.0.92",
    "@anthropic-ai/claude-code": "2.1.332",
    "@anthropic-ai/sdk": "1.14.0",
    "@continuedev/cli": "1.5.47",
    "@openai/codex": "0.171.0",
    "ai": "7.0.173",
    "ollama": "0.6.4",
    "openai": "7.59.0",
    "opencode-ai": "1.18.33",
}
PYPI = {"aider-chat": "0.86.2", "openai-agents": "0.24.0"}


@contextmanager
def from_npm(folder, *names):
    """Packages of npm, installed into a folder during the block; the folder holds node_modules."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node or npm is not installed")
    (folder / "package.json").write_text('{"type": "module"}')
    command = [npm, "install", "--no-audit", "--no-fund", *(f"{name}@{NPM[name]}" for name in names)]
    with _installed(folder, names, [command]):
        yield folder


@contextmanager
def from_pypi(folder, name):
    """A package of PyPI in an environment of its own during the block; the folder that has its programs."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    programs = folder / "venv" / "bin"
    make = [uv, "venv", "--quiet", "--python", "3.11", folder / "venv"]
    install = [uv, "pip", "install", "--quiet", "--python", programs / "python", f"{name}=={PYPI[name]}"]
    with _installed(folder, [name], [make, install]):
        yield programs


@contextmanager
def _installed(folder, names, commands):
    try:
        for command in commands:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=LIMIT_S, check=False)
            if done.returncode != 0:
                pytest.skip(f"{', '.join(names)} cannot be installed")
        yield
    finally:
        shutil.rmtree(folder)  # some take 400 MB
