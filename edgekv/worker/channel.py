"""Messages through a pair of pipes: a length, then bytes.

A message goes with every token. The weights of the model have then just passed through the processor's caches and left
nothing else in them, so the time goes with the amount of code. A message that fits is one write and one read.
"""

from __future__ import annotations

import os
import select
import sys
import time

LENGTH_BYTES = 8
READ_BYTES = 1 << 16
PEEK_S = 0.001  # between two looks at a pipe of Windows


class Channel:
    """One end of two pipes; it closes both file descriptors. Raises EOFError or OSError if the other end is gone."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._reads = self._writes = True
        self._begun = b""  # bytes that came after the last message
        self._poll = None
        if sys.platform != "win32":  # Windows polls no pipe
            self._poll = select.poll()
            self._poll.register(reading, select.POLLIN)

    def send(self, head: bytes, body: bytes) -> None:
        """Send a message of two parts."""
        if not self._writes:
            raise BrokenPipeError
        length = (len(head) + len(body)).to_bytes(LENGTH_BYTES, "little")
        if len(body) < READ_BYTES:
            parts: list[bytes] = [length + head + body]
        else:
            parts = [length + head, body]  # a large message is not copied
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(self._writing, rest) :]

    def wait(self, seconds: float | None) -> bool:
        """Wait until a message begins to arrive, or the other end is gone; returns False after so many seconds.

        seconds: None = any number
        """
        if self._begun:
            return True
        if self._poll is not None:
            return len(self._poll.poll(None if seconds is None else 1000 * seconds)) > 0
        return seconds is None or _has_bytes(self._reading, seconds)

    def receive(self) -> bytes | memoryview:
        """Return the next message."""
        data = self._begun or self._read()
        while len(data) < LENGTH_BYTES:
            data += self._read()
        size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
        if len(data) >= size:
            self._begun = data[size:]
            return data[LENGTH_BYTES:size]
        whole = bytearray(data)
        while len(whole) < size:
            whole += self._read()
        self._begun = bytes(whole[size:])
        return memoryview(whole)[LENGTH_BYTES:size]

    def end_writing(self) -> None:
        """Tell the other end that no message will come."""
        if self._writes:
            self._writes = False
            os.close(self._writing)

    def close(self) -> None:
        """Close this end."""
        self.end_writing()
        if self._reads:
            self._reads = False
            os.close(self._reading)

    def _read(self) -> bytes:
        data = os.read(self._reading, READ_BYTES)
        if not data:
            raise EOFError
        return data


def _has_bytes(reading: int, seconds: float) -> bool:
    """Return True once a pipe of Windows has bytes or its other end is gone, and False after so many seconds."""
    if sys.platform == "win32":
        import _winapi
        import msvcrt

        handle, until = msvcrt.get_osfhandle(reading), time.monotonic() + seconds
        while True:
            try:
                if _winapi.PeekNamedPipe(handle, 0)[0]:
                    return True
            except OSError:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(PEEK_S)
    raise AssertionError("other systems poll")
