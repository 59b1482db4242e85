"""Messages through a pair of pipes, one at a time in each direction: a length, then bytes.

A message goes with every token. The weights of the model have then just passed through the processor's caches and left
nothing else in them, so the time goes with the amount of code. A message that fits is one write and one read.
"""

from __future__ import annotations

import os
import select
import sys

LENGTH_BYTES = 8
READ_BYTES = 1 << 16


class Channel:
    """One end of two pipes; it closes both file descriptors. Raises EOFError or OSError if the other end is gone."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._open = True
        self._poll = None
        if sys.platform != "win32":  # Windows polls no pipe
            self._poll = select.poll()
            self._poll.register(reading, select.POLLIN)

    def send(self, message: bytes) -> None:
        """Send a message."""
        length = len(message).to_bytes(LENGTH_BYTES, "little")
        if len(message) < READ_BYTES:
            whole = length + message
            written = os.write(self._writing, whole)
            if written == len(whole):
                return
            parts = [whole[written:]]
        else:
            parts = [length, message]  # a large message is not copied
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(self._writing, rest) :]

    def wait(self) -> None:
        """Wait until a message begins to arrive, if the system can poll. An interrupt while waiting loses nothing."""
        if self._poll is not None:
            self._poll.poll()

    def receive(self) -> bytes | memoryview:
        """Return the next message."""
        data = self._read()
        size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
        return data[LENGTH_BYTES:] if len(data) == size else self._rest(bytearray(data))

    def close(self) -> None:
        """Close this end."""
        if self._open:
            self._open = False
            os.close(self._reading)
            os.close(self._writing)

    def _rest(self, data: bytearray) -> memoryview:
        """Return the message that begins with these bytes."""
        while len(data) < LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little"):
            data += self._read()
        return memoryview(data)[LENGTH_BYTES:]

    def _read(self) -> bytes:
        data = os.read(self._reading, READ_BYTES)
        if not data:
            raise EOFError
        return data
