"""What PyInstaller must know of edgekv. It finds this folder by an entry point; programs name nothing."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """The folder of the hooks."""
    return [str(Path(__file__).parent)]
