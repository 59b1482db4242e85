"""POST /tokenize and /detokenize: texts and their tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, Field

from edgekv.runtime import Runtime

from .api_errors import ApiError
from .body import MAX_VALUES, Body
from .endpoint import Query, QueryWork

TOKEN_BYTES = 40  # bytes of a token in a list
PIECE_BYTES = 400  # bytes of a token with its text


class TextBody(Body):
    """A text.

    add_special: add the tokens that the model wants before it; parse_special: read control tokens
    with_pieces: tell the text of each token, or the bytes of one that is a part of a character

    The first names are those of llama.cpp's server, the second those of vLLM's, which lm-eval asks for.
    """

    content: str = Field(validation_alias=AliasChoices("content", "prompt"))
    add_special: bool = Field(False, validation_alias=AliasChoices("add_special", "add_special_tokens"))
    parse_special: bool = False
    with_pieces: bool = False


class TokensBody(Body):
    """Tokens."""

    tokens: list[Annotated[int, Field(ge=0, lt=1 << 31)]]


def tokenize(body: TextBody) -> QueryWork:
    """Return the request to tokenise a text. Raises ApiError for a text that is too long."""
    n_bytes = len(body.content.encode())  # a token stands for one of them, or for several
    if n_bytes > MAX_VALUES:
        what = f"content has {n_bytes} bytes, but at most {MAX_VALUES} are taken; send it in parts"
        raise ApiError(400, "invalid_value", what, param="content")
    begin, special = body.add_special, body.parse_special

    def tokens(runtime: Runtime) -> dict[str, Any]:
        found = runtime.tokenize(body.content, begin=begin, special=special)
        told = {"count": len(found), "max_model_len": runtime.plan.n_ctx_train}
        if not body.with_pieces:
            return told | {"tokens": found}
        pieces = runtime.pieces_of(found)
        return told | {
            "tokens": [{"id": token, "piece": _told(piece)} for token, piece in zip(found, pieces, strict=True)]
        }

    return QueryWork((PIECE_BYTES if body.with_pieces else TOKEN_BYTES) * n_bytes, tokens)


def _told(piece: bytes) -> str | list[int]:
    """Return a token's text; for a part of a character its bytes."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return [*piece]


def detokenize(body: TokensBody) -> QueryWork:
    """Return the spelling of tokens, under the names that both servers have."""

    def spell(runtime: Runtime) -> dict[str, str]:
        text = runtime.text_of(body.tokens)
        return {"content": text, "prompt": text}

    return QueryWork(TOKEN_BYTES * len(body.tokens), spell)


tokenizing = Query("/tokenize", TextBody, tokenize)
detokenizing = Query("/detokenize", TokensBody, detokenize)
