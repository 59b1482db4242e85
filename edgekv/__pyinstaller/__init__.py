"""Tell PyInstaller of the hooks in this folder. An entry point names this module, so programs configure nothing."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """The folder of the hooks."""
    return [str(Path(__file__).parent)]
