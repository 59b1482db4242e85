"""Messages through a pair of pipes, one at a time in each direction: a length, then a pickle.

A message goes with every token. The weights of the model have then just passed through the processor's caches and left
nothing else in them, so the time goes with the amount of code: multiprocessing's Connection takes three times as long.
"""

from __future__ import annotations

import os
import pickle
import select
from typing import Any

LENGTH_BYTES = 8
READ_BYTES = 1 << 16


class Channel:
    """One end, of two file descriptors, which it closes. Raises EOFError or OSError when the other end is gone."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._open = True
        self._poll = None
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(reading, select.POLLIN)

    def send(self, message: bytes) -> None:
        """Send a pickled message."""
        length = len(message).to_bytes(LENGTH_BYTES, "little")
        for part in [length + message] if len(message) < READ_BYTES else [length, message]:
            rest = memoryview(part)  # what is large is not copied
            while rest:
                rest = rest[os.write(self._writing, rest) :]

    def wait(self) -> None:
        """Wait until a message begins to come, on systems that can tell. An interrupt while waiting loses nothing."""
        if self._poll is not None:
            self._poll.poll()

    def receive(self) -> Any:
        """The next message."""
        data = bytearray(self._read())
        while len(data) < LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little"):
            data += self._read()
        return pickle.loads(memoryview(data)[LENGTH_BYTES:])

    def close(self) -> None:
        """Close this end."""
        if self._open:
            self._open = False
            os.close(self._reading)
            os.close(self._writing)

    def _read(self) -> bytes:
        data = os.read(self._reading, READ_BYTES)
        if not data:
            raise EOFError
        return data
