"""JSON lines on disk that only grow: a writer that is killed leaves at most one cut line, which is removed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError, InputError
from edgekv.memory.raw_files import write_all

from .shared_files import lock


class JsonlFile:
    """A file of JSON values, one a line, which this process alone appends to. Close it, or use it in `with`.

    opening: the beginning of each of its lines; a cut line with another beginning is an error

    Raises ConfigError for a file that cannot be written, and while another process has it open.
    """

    def __init__(self, path: Path, opening: str) -> None:
        self.path = path
        self._opening = opening.encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                raise ConfigError(f"{path} is {'a folder' if path.is_dir() else 'no plain file'}; name a file")
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            lock(self._file.fileno())
        except BlockingIOError as error:
            self._file.close()
            raise ConfigError(f"{path} is in use by another process; wait for it, or name another file") from error

    def read(self) -> Iterator[tuple[int, Any]]:
        """Yield the number and the value of each line; removes a cut line at the end.

        Raises InputError for a line of another kind; the file then stays as it is.
        """
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and self._is_begun(line):
                    break
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise self.foreign(number) from error
                yield number, value
                whole += len(line)
        self._file.truncate(whole)

    def foreign(self, number: int) -> InputError:
        """Return the error for a line of another kind."""
        return InputError(f"line {number} of {self.path} is no result; name another file")

    def append(self, value: Any) -> None:
        """Add a line, and wait until it is on the disk. Raises ConfigError if there is no room; nothing is added."""
        line = (json.dumps(value, allow_nan=False) + "\n").encode()
        end = self._file.seek(0, os.SEEK_END)
        try:
            write_all(self._file, memoryview(line))
            os.fsync(self._file.fileno())
        except BaseException as error:
            with suppress(OSError):
                self._file.truncate(end)
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise

    def close(self) -> None:
        """Close the file. Other processes may then open it."""
        self._file.close()

    def __enter__(self) -> JsonlFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_begun(self, line: bytes) -> bool:
        return line.startswith(self._opening) or self._opening.startswith(line)

    def _unwritable(self, error: OSError) -> ConfigError:
        why = error.strerror or error
        return ConfigError(f"results cannot be written to {self.path}: {why}; name another file, or make room there")
