"""POST /tokenize and /detokenize: texts and their tokens."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .body import MAX_VALUES, Body, Text, read_body
from .errors import ApiError
from .state import state_of
from .streaming import BudgetedResponse

TOKEN_BYTES = 40  # bytes of a token in a list


class TextBody(Body):
    """A text. add_special: add the tokens that the model wants before it; parse_special: read control tokens"""

    content: Text
    add_special: bool = False
    parse_special: bool = False


class TokensBody(Body):
    """Tokens."""

    tokens: list[Annotated[int, Field(ge=0, lt=1 << 31)]]


async def tokenize(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, TextBody, state.settings, state.memory)

    n_bytes = len(body.content.encode())  # a token stands for one of them, or for several
    if n_bytes > MAX_VALUES:
        what = f"content has {n_bytes} bytes, but at most {MAX_VALUES} are taken; send it in parts"
        raise ApiError(400, "invalid_value", what, param="content")

    def work() -> list[int]:
        return state.pool.runtime.tokenize(body.content, begin=body.add_special, special=body.parse_special)

    with state.memory.reserved(TOKEN_BYTES * n_bytes):
        tokens = await to_thread.run_sync(work)
    return BudgetedResponse({"tokens": tokens}, state.memory)


async def detokenize(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, TokensBody, state.settings, state.memory)
    with state.memory.reserved(TOKEN_BYTES * len(body.tokens)):
        text = await to_thread.run_sync(state.pool.runtime.text_of, body.tokens)
    return BudgetedResponse({"content": text}, state.memory)


routes = [Route("/tokenize", tokenize, methods=["POST"]), Route("/detokenize", detokenize, methods=["POST"])]
