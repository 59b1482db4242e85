"""POST /v1/completions: a text goes on as it stands, without a chat template."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from edgekv.generation.logprobs import Packed
from edgekv.server.api_errors import unsupported
from edgekv.server.reply_request import Ended, Event, Piece, ReplyRequest
from edgekv.server.server_settings import Settings

from .body import Text
from .endpoint import Endpoint
from .openai_common import FINISH_REASONS, ChoiceRenderer, GenerationParams
from .openai_fields import ResponseFormat, text_logprobs

Ids = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
Prompt = Annotated[Text, Field(min_length=1)]


class CompletionBody(GenerationParams):
    """The body of a request."""

    may_tell_coverage = True
    prompt: Prompt | Ids | Annotated[list[Prompt] | list[Ids], Field(min_length=1)]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None


def parse(body: CompletionBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for what cannot be done here."""
    if body.echo:
        raise unsupported("echo", "the prompt is not repeated in the reply")
    if body.suffix:
        raise unsupported("suffix", "a text is only gone on with at its end")
    if body.best_of is not None and body.best_of > 1:
        raise unsupported("best_of", f"best_of={body.best_of} replies cannot be had: this server makes one")
    schema = None if body.response_format is None else body.response_format.reply_schema()
    prompt: Any = body.prompt
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise unsupported("prompt", f"{len(prompt)} prompts cannot be answered by one request; send one prompt")
        prompt = prompt[0]
    if isinstance(prompt, list):
        prompt = array("i", prompt)  # 4 bytes each, while they wait
    arguments = body.arguments(settings, own_form="response_format", schema=schema)
    return ReplyRequest(prompt=prompt, n_logprobs=body.logprobs, **arguments)


class CompletionRenderer(ChoiceRenderer):
    """A `Renderer` of text completions."""

    def __init__(self, body: CompletionBody, _request: ReplyRequest, model: str) -> None:
        super().__init__(body, model, "cmpl", "text_completion")
        self._n_chars = 0

    def stream(self, event: Event) -> Iterator[bytes]:
        """Yield the part of a stream that tells an event."""
        if isinstance(event, Piece):
            yield from self.chunk(_choice(event.text, None, event.logprobs, self._n_chars))
            self._n_chars += len(event.text)
        elif isinstance(event, Ended):
            yield from self.chunk(_choice("", FINISH_REASONS[event.reason]))
            yield from self.end(event)

    def choice(self, ended: Ended) -> dict[str, Any]:
        """Return the choice of a whole reply."""
        return _choice("".join(self.texts[False]), FINISH_REASONS[ended.reason], self.tokens)


def _choice(text: str, finish_reason: str | None = None, tokens: Packed = b"", offset: int = 0) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": text_logprobs(tokens, offset)}


endpoint = Endpoint("/v1/completions", CompletionBody, parse, CompletionRenderer)
