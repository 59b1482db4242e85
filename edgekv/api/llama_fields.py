"""Fields of llama.cpp's server, beside those of OpenAI."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from edgekv.generation.sampler import MAX_BIAS, MAX_REPEAT_LAST

from .api_errors import ApiError
from .body import Body, Whole

MOST_DIGITS = 19  # digits of a token id that is a text; Python reads no number of thousands of digits


class LlamaFields(Body):
    """Fields of every endpoint.

    ignore_eos: neither the model nor a loop ends the reply; it needs a length
    """

    n_predict: Annotated[Whole, Field(ge=-1)] | None = None
    repeat_last_n: Annotated[Whole, Field(ge=-1, le=MAX_REPEAT_LAST)] | None = None
    ignore_eos: bool | None = None


def biases(given: dict[str, float] | list[tuple[Any, Any]]) -> dict[int, float]:
    """Return a field `logit_bias` by token id: a mapping as OpenAI's, or pairs as llama.cpp's. Raises ApiError."""
    found: dict[int, float] = {}
    for token, bias in given.items() if isinstance(given, dict) else given:
        is_decimal = isinstance(token, str) and token.isdecimal() and len(token) <= MOST_DIGITS
        if isinstance(token, bool) or not (isinstance(token, int) or is_decimal):
            what = f"logit_bias names {str(token)[:40]!r}, which is no token id; ask /tokenize for the ids of a text"
            raise ApiError(400, "invalid_value", what, param="logit_bias")
        if bias is not False and (isinstance(bias, bool) or not isinstance(bias, (int, float))):
            what = f"logit_bias of {token} is {str(bias)[:40]!r}; give a number, or false to forbid the token"
            raise ApiError(400, "invalid_value", what, param="logit_bias")
        found[int(token)] = -MAX_BIAS if bias is False else bias
    return found
