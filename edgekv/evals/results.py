"""Results on disk: JSON lines, each keyed by its whole configuration. A case in the file is not measured again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekv.store.jsonl import JsonlFile

Config = Mapping[str, Any]


def key_of(config: Config) -> str:
    """Return the key of a configuration: its plain values, in one order."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


class Results:
    """A file of results, one a line: {"config": {...}, "result": {...}}. Close it, or use it in `with`.

    A result is whole and on the disk once `add` returns. A process that is killed loses its current measurement, and
    leaves at most one cut line, which is dropped when the file is opened again. Raises InputError for a file that holds
    anything else, and ConfigError for one that cannot be written, or that another process has open.
    """

    def __init__(self, path: Path) -> None:
        self._file = JsonlFile(path, opening='{"config": {')
        try:
            self._rows = self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> dict[str, Any]:
        rows = {}
        for number, row in self._file.read():
            try:
                rows[key_of(row["config"])] = row["result"]
            except (TypeError, KeyError) as error:
                raise self._file.foreign(number) from error
        return rows

    def add(self, config: Config, result: Mapping[str, Any]) -> None:
        """Append a result, and wait until it is on the disk."""
        self._file.append({"config": config, "result": result})
        self._rows[key_of(config)] = dict(result)

    def get(self, config: Config) -> dict[str, Any] | None:
        """The result of a configuration, if there is one."""
        return self._rows.get(key_of(config))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
