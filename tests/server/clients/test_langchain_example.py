"""examples/langchain: a conversation through LangChain, tested as its own project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from children import LIMIT_S

EXAMPLE = Path(__file__).parents[3] / "examples" / "langchain"


@pytest.mark.nightly
def test_the_example(default_model):
    """A process of its own imports LangChain, so that no test of memory measures it."""
    pytest.importorskip("langchain_core", reason="the example needs it")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE)]
    done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
