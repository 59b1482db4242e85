"""POST /tokenize and /detokenize: texts and their tokens."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .body import Body, Text, read_body
from .state import state_of


class TextBody(Body):
    """A text. add_special: with what the model wants before one; parse_special: names of control tokens are these"""

    content: Text
    add_special: bool = False
    parse_special: bool = False


class TokensBody(Body):
    """Tokens."""

    tokens: list[Annotated[int, Field(ge=0, lt=1 << 31)]]


async def tokenize(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, TextBody, state.settings, state.room)

    def work() -> list[int]:
        return state.pool.runtime.tokenize(body.content, begin=body.add_special, special=body.parse_special)

    return JSONResponse({"tokens": await to_thread.run_sync(work)})


async def detokenize(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, TokensBody, state.settings, state.room)
    return JSONResponse({"content": await to_thread.run_sync(state.pool.runtime.text_of, body.tokens)})


routes = [Route("/tokenize", tokenize, methods=["POST"]), Route("/detokenize", detokenize, methods=["POST"])]
