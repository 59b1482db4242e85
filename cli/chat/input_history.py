"""History of typed lines, in a file of the user's that does not grow without end."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import platformdirs

from edgekv.store.atomic_write import atomic_write

KEPT_BYTES = 1 << 16  # bytes of the newest entries, which are read
MOST_BYTES = 4 * KEPT_BYTES  # bytes of the file, before it is cut to the newest entries


def history_path() -> Path:
    """Return the path of the file, which need not exist yet."""
    return Path(platformdirs.user_data_dir("edgekv", appauthor=False)) / "history"


class History:
    """Entries of the file, a JSON string a line. A file that cannot be read or written has none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[str]:
        """Return the newest entries, oldest first. Cuts a file that has become long."""
        try:
            with self._path.open("rb") as file:
                n_bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, n_bytes - KEPT_BYTES))
                lines = file.read().split(b"\n")[n_bytes > KEPT_BYTES :]
        except OSError:
            return []
        if n_bytes > MOST_BYTES:
            with contextlib.suppress(OSError), atomic_write(self._path) as kept:
                kept.write(b"\n".join(lines))
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, str):
                    found.append(entry)
        return found

    def add(self, entry: str) -> None:
        """Note an entry, in a file that only its owner can read."""
        line = json.dumps(entry).encode() + b"\n"
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                if len(line) <= KEPT_BYTES:
                    file.write(line)
