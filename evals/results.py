"""Results on disk: JSON lines, each keyed by its whole configuration. A case in the file is not measured again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from edgekv.errors import ConfigError, InputError

Config = Mapping[str, Any]


def key_of(config: Config) -> str:
    """What identifies a configuration: its plain values, in one order."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


class Results:
    """A file of results, one a line: {"config": {...}, "result": {...}}. Close it, or use it in `with`.

    A result is whole and on the disk once `add` returns: a process that is killed loses what it was measuring, and
    leaves at most one cut line, which is dropped when the file is opened again. Raises InputError for a file that holds
    anything else, and ConfigError while another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            _lock(self._file.fileno(), path)
            self._rows = self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> dict[str, Any]:
        self._file.seek(0)
        whole, rows = 0, {}
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                rows[key_of(row["config"])] = row["result"]
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"line {number} of {self.path} is no result; name another file") from error
            whole += len(line)
        self._file.truncate(whole)
        return rows

    def add(self, config: Config, result: Mapping[str, Any]) -> None:
        """Append a result, and wait until it is on the disk."""
        line = json.dumps({"config": config, "result": result}, allow_nan=False) + "\n"
        self._file.write(line.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._rows[key_of(config)] = dict(result)

    def get(self, config: Config) -> dict[str, Any] | None:
        """The result of a configuration, if there is one."""
        return self._rows.get(key_of(config))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _lock(file: int, path: Path) -> None:
    """Keep other processes from appending; where the platform has no such lock, nothing."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(f"{path} is in use by another process; wait for it, or name another file") from error
