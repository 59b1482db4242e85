"""The `edgekv` command as a function that a fresh process can import. It imports nothing that would count as memory."""

from __future__ import annotations

import sys


def run_command(*arguments):
    """Run `edgekv ARGUMENTS`; returns the exit status."""
    from edgekv.cli.main import main

    sys.argv = ["edgekv", *map(str, arguments)]
    return main()
