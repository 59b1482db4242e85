"""Damaged model files give typed errors, or load; none of them takes the process down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).parents[1] / "stress" / "fuzz.py"


def test_damaged_files_are_refused_or_answer():
    """A file of each kind of damage; the whole bench opens 2,000."""
    command = [sys.executable, str(FUZZ), "--files", "20"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    header, *_, total = (line.split() for line in result.stdout.splitlines() if line.split()[0] in ("damage", "all"))
    counts = dict(zip(header, total, strict=True))
    assert int(counts["files"]) == 20
    assert int(counts["InvalidModelError"]) > 6
    assert int(counts["loaded"]) > 3
