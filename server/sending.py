"""What is sent goes out in parts, each when the client has read what came before: no answer waits whole in a buffer."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .room import Room
from .written import PART_BYTES


class InParts:
    """An ASGI application in front of another, whose bodies it cuts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            if message["type"] == "http.response.body":
                body = message.get("body", b"")
                last = max(0, len(body) - 1) // PART_BYTES * PART_BYTES
                for at in range(0, last, PART_BYTES):
                    part = body[at : at + PART_BYTES]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                message = {**message, "body": body[last:]}
            await send(message)

        await self._app(scope, receive, send_parts)


class Counted(JSONResponse):
    """An answer that may be long: the room has it until the client does. Raises Failure where there is none for it."""

    def __init__(self, content: Any, room: Room) -> None:
        super().__init__(content)
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._room.held(len(self.body)):
            await super().__call__(scope, receive, send)
