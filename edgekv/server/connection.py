"""Connections of uvicorn, with limits on their number and on how slow a client may be."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgekv.api.json_stream import PART_BYTES

HEAD_S = 10.0  # seconds for the head of a request to come
STALLED_S = 30.0  # seconds for a client to read what was sent, or to end a body that was refused
READ_BYTES = 8 << 10  # bytes that are read at once, and held if they follow a request that is not answered yet
BUFFER_BYTES = 16 << 10  # bytes of a reply that a slow client has not read yet

_SAYS = b"too many connections are open\r\n"
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(_SAYS), _SAYS)
)


class Connection(H11Protocol):
    """A connection that is closed if its client is too slow, and refused if too many are open."""

    limit = 128

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, unless too many are open."""
        self._timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # asyncio reads 256 KiB by default; Windows' transport has a limit of its own
        transport.set_write_buffer_limits(high=BUFFER_BYTES - PART_BYTES)
        if len(self.connections) > self.limit:
            transport.write(FULL)
            transport.close()
            return
        self._end_in(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer of the connection."""
        self._keep()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came. A head that has begun must end in time, and so must a body that nobody reads any more."""
        super().data_received(data)
        if self.flow.write_paused:  # the timer is that of the reply, which the client does not read
            return
        was_answered = self.conn.our_state is h11.DONE  # before its body has come to its end
        if self.conn.their_state is not h11.IDLE and not was_answered:
            self._keep()
        elif self._timer is None:
            self._end_in(STALLED_S if was_answered else HEAD_S)

    def pause_writing(self) -> None:
        """Start a timer: the client reads more slowly than the reply comes."""
        super().pause_writing()
        self._end_in(STALLED_S)

    def resume_writing(self) -> None:
        """Stop the timer: the client has drained the socket buffer."""
        self._keep()
        super().resume_writing()

    def _end_in(self, seconds: float) -> None:
        self._keep()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _keep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
