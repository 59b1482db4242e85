"""The file of results, in OpenAI's batch format: a line for each request that is answered, in the order of answers."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError
from edgekv.store.jsonl import JsonlFile

from .requests import Requests

ID = "batch_req_"
RANDOM_ID = re.compile(r"([a-z]+[-_])[0-9a-f]{16,}")


def digest_of(*parts: str, digits: int = 24) -> str:
    """Return a digest of these texts, for an id."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:digits]


class Results:
    """The results of a file of requests. Close it.

    answered: by custom_id, True if the result is an error

    The id of a line follows from the whole file of requests and from the custom_id. So results of another file, or of
    this one before it changed, are found out. Raises ConfigError for those, and for a file that cannot be written;
    InputError for a file of something else.
    """

    def __init__(self, path: Path, requests: Requests) -> None:
        if path.exists() and requests.path.exists() and path.samefile(requests.path):
            raise ConfigError(f"{path} is the file of requests; name another one for the results")
        self.path = path
        self.answered: dict[str, bool] = {}
        self._requests = requests
        self._file = JsonlFile(path, opening=f'{{"id": "{ID}')
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        known = set(self._requests.custom_ids)
        for number, row in self._file.read():
            try:
                found, custom_id, failed = row["id"], str(row["custom_id"]), is_failure(row)
            except (TypeError, KeyError) as error:
                raise self._file.foreign(number) from error
            if custom_id not in known or found != self.id_of(custom_id):
                raise ConfigError(
                    f"{self.path} has answers to another file than {self._requests.path}, or to what that was before "
                    f"it changed (custom_id {custom_id!r} in line {number}); name another file for the results"
                )
            if custom_id in self.answered:
                raise self._file.foreign(number)
            self.answered[custom_id] = failed

    def id_of(self, custom_id: str) -> str:
        """Return the id of a result."""
        return ID + digest_of(self._requests.digest, custom_id)

    def add(self, custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bool:
        """Append the result of a request, and wait until it is on the disk; return True for an error."""
        row = {"id": self.id_of(custom_id), "custom_id": custom_id, "response": response, "error": error}
        self._file.append(row)
        self.answered[custom_id] = is_failure(row)
        return self.answered[custom_id]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def with_own_ids(body: dict[str, Any], own: str) -> dict[str, Any]:
    """Return a body whose random ids, of the reply and of its parts, follow from `own`."""
    found: dict[str, str] = {}

    def settled(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {name: settled(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [settled(part) for part in value]
        random = RANDOM_ID.fullmatch(value) if name in ("id", "call_id") and isinstance(value, str) else None
        if random is None:
            return value
        return found.setdefault(value, random[1] + digest_of(own, str(len(found))))

    parts = {name: settled(body[name], name) for name in ("id", "choices", "output") if name in body}
    return body | parts


def is_failure(row: dict[str, Any]) -> bool:
    """Return True if a result is an error. Raises TypeError and KeyError if the row is no result."""
    return row["error"] is not None or row["response"]["status_code"] != 200
