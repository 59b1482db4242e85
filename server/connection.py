"""One connection: uvicorn's own, with limits on how many there are and on how slow a client may be."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .json_stream import PART_BYTES

HEAD_S = 10.0  # for the head of a request to come
STALLED_S = 30.0  # for a client to read what was sent
BUFFER_BYTES = 16 << 10  # of an answer that comes in parts, which a slow client has not read yet

_SAYS = b"too many connections are open\r\n"
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(_SAYS), _SAYS)
)


class Connection(H11Protocol):
    """A connection that is closed where its client is too slow, and refused where there are too many."""

    limit = 128

    def connection_made(self, transport: Any) -> None:
        """Take the connection."""
        self._timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES - PART_BYTES)
        if len(self.connections) > self.limit:
            transport.write(FULL)
            transport.close()
            return
        self._end_in(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._keep()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came. A head that has begun must come to its end in time; a body has a limit of its own."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._keep()
        elif self._timer is None:
            self._end_in(HEAD_S)

    def pause_writing(self) -> None:
        """The client does not read as fast as the answer comes."""
        super().pause_writing()
        self._end_in(STALLED_S)

    def resume_writing(self) -> None:
        """It has read."""
        self._keep()
        super().resume_writing()

    def _end_in(self, seconds: float) -> None:
        self._keep()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _keep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
