"""Fields of llama.cpp's server, beside those of OpenAI: honoured, or refused where they would change the reply."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from edgekv.generation.sampler import MAX_BIAS, MAX_REPEAT_LAST
from edgekv.server.api_errors import ApiError, unsupported

from .body import Body

# Samplers and habits that edgekv has not, each with the value that turns it off there.
TURNED_OFF: dict[str, Any] = {
    "mirostat": 0,
    "typical_p": 1,
    "top_n_sigma": -1,
    "xtc_probability": 0,
    "dry_multiplier": 0,
    "dynatemp_range": 0,
    "samplers": [],
    "lora": [],
    "chat_template_kwargs": {},
}

MOST_DIGITS = 19  # digits of a token id that is a text; Python reads no number of thousands of digits


class LlamaFields(Body):
    """Fields of every endpoint.

    ignore_eos: neither the model nor a loop ends the reply; it needs a length
    grammar: in GBNF; json_schema: a schema that the reply must fit
    t_max_predict_ms: milliseconds for the reply after its first token; 0 or less = any
    """

    turned_off: ClassVar[dict[str, Any]] = TURNED_OFF

    n_predict: Annotated[int, Field(ge=-1)] | None = None
    t_max_predict_ms: float | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=MAX_REPEAT_LAST)] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    mirostat: int | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    dry_multiplier: float | None = None
    dynatemp_range: float | None = None
    ignore_eos: bool | None = None
    samplers: list[str] | str | None = None
    lora: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def longest_s(self) -> float | None:
        """The seconds for the reply after its first token; None = any."""
        limit = self.t_max_predict_ms
        return None if limit is None or limit <= 0 else limit / 1e3

    def check_llama(self) -> None:
        """Raise ApiError for fields that would change the reply in a way that edgekv has not."""
        for name, off in self.turned_off.items():
            value = getattr(self, name)
            if value is not None and value != off:
                raise unsupported(name, f"{name} is not possible here; give {off!r}, which turns it off")

    def form(self, own: str, schema: Any) -> dict[str, Any]:
        """Return what the reply must be, as arguments of a `ReplyRequest`. Raises ApiError if two fields say it.

        own: the API's own field for it; schema: what that says; None = nothing
        """
        said = {own: schema, "json_schema": self.json_schema, "grammar": self.grammar or None}
        named = [name for name, value in said.items() if value is not None]
        if len(named) > 1:
            what = f"{' and '.join(named)} each say what the reply must be; give one of them"
            raise ApiError(400, "invalid_value", what, param=named[1])
        return {"json_schema": schema if self.json_schema is None else self.json_schema, "grammar": said["grammar"]}


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
