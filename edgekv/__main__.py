"""`python -m edgekv`, and the program `edgekv`: the command line, which Ctrl-C ends quietly even while it starts."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns its exit status."""
    try:
        from .cli.main import main as command  # takes a while, in which Ctrl-C may come

        return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
