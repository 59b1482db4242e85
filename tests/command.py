"""The `edgekv` command as a program, with options under which a tiny model answers in seconds, and texts for it."""

from __future__ import annotations

import sys

COMMAND = [sys.executable, "-c", "import sys; from edgekv.cli.main import main; sys.exit(main())"]
SMALL = ["--memory", "1GiB", "--budget", "64", "--block", "32", "--threads", "1"]


def words(n):
    """A text of n words that all differ."""
    return " ".join(f"word{i}" for i in range(n))
