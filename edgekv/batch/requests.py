"""The file of requests: JSON lines in OpenAI's batch format, read one at a time."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any, NamedTuple

from edgekv.errors import InputError

EXAMPLE = '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'


class Request(NamedTuple):
    """One line of the file. Only its `custom_id` is checked."""

    custom_id: str
    method: Any
    url: Any
    body: Any


class _Place(NamedTuple):
    """The place of a line in the file, and a digest of it."""

    offset: int
    n_bytes: int
    digest: bytes


class Requests:
    """The requests of a file, by their numbers from 0 on. Close it.

    custom_ids: the custom_id of each request
    digest: digest of the whole file, in hex

    Only the places of the lines are in memory. Raises InputError for a file that cannot be read, holds no request, or
    has a line that is no request or a custom_id twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.custom_ids: list[str] = []
        self._places: list[_Place] = []
        self._reading = threading.Lock()
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no plain file; give one, which is read again when the batch goes on")
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self.digest = self._look_through()
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise self._unreadable(error) from error
            raise

    def _look_through(self) -> str:
        digest, offset = hashlib.sha256(), 0
        lines: dict[str, int] = {}
        for number, line in enumerate(self._file, 1):
            digest.update(line)
            if line.strip():
                custom_id = self._request(line, number).custom_id
                if custom_id in lines:
                    raise InputError(
                        f"lines {lines[custom_id]} and {number} of {self.path} have the custom_id {custom_id!r}; "
                        "give each request its own"
                    )
                lines[custom_id] = number
                self.custom_ids.append(custom_id)
                self._places.append(_Place(offset, len(line), hashlib.blake2b(line, digest_size=8).digest()))
            offset += len(line)
        if not lines:
            raise InputError(f"{self.path} holds no request; give one a line: {EXAMPLE}")
        return digest.hexdigest()

    def _unreadable(self, error: OSError) -> InputError:
        return InputError(f"{self.path} cannot be read: {error.strerror or error}; give a file of requests")

    def _request(self, line: bytes, number: int) -> Request:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} of {self.path} is not JSON ({error}); write it as {EXAMPLE}") from error
        if not isinstance(value, dict):
            raise InputError(f"line {number} of {self.path} is no JSON object; write it as {EXAMPLE}")
        custom_id = value.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id.strip():
            raise InputError(
                f"line {number} of {self.path} has the custom_id {custom_id!r}; give a text, which its answer will have"
            )
        return Request(custom_id, value.get("method"), value.get("url"), value.get("body"))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Request:
        """Read a request again, from any thread. Raises InputError if the file has changed."""
        place = self._places[number]
        with self._reading:
            self._file.seek(place.offset)
            line = self._file.read(place.n_bytes)
        if hashlib.blake2b(line, digest_size=8).digest() != place.digest:
            raise InputError(f"{self.path} changed while it was answered; put back what it was, and run this again")
        return self._request(line, number)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
