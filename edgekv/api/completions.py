"""POST /v1/completions: a text goes on as it stands, without a chat template."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from edgekv.generation.logprobs import Packed

from .api_errors import unsupported
from .body import Whole
from .endpoint import Endpoint
from .openai_common import FINISH_REASONS, ChoiceRenderer, GenerationParams, choices
from .openai_fields import ResponseFormat, text_logprobs
from .other_fields import REFUSED
from .reply_request import Ended, Event, Piece, ReplyRequest
from .server_settings import Settings

Ids = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
Prompt = Annotated[str, Field(min_length=1)]


class PromptBody(GenerationParams):
    """A body with one prompt, or several."""

    may_have_choices = True
    prompt: Prompt | Ids | Annotated[list[Prompt] | list[Ids], Field(min_length=1)]
    response_format: ResponseFormat | None = None

    @property
    def prompts(self) -> list[Any]:
        """The prompts: texts, or lists of ids."""
        given: Any = self.prompt
        return [given] if isinstance(given, str) or isinstance(given[0], int) else given

    @property
    def n_choices(self) -> int:
        """The number of replies that the body asks for: n to each prompt."""
        return len(self.prompts) * (self.n or 1)

    def first(self, settings: Settings, **further: Any) -> ReplyRequest:
        """Return the request for the first reply. Raises ApiError for a field that cannot be honoured."""
        schema = None if self.response_format is None else self.response_format.reply_schema()
        arguments = self.arguments(settings, own_form="response_format", schema=schema)
        return ReplyRequest(prompt=_prompt(self.prompts[0]), **further, **arguments)


class CompletionBody(PromptBody):
    """The body of a request."""

    refused: ClassVar = {**REFUSED, "add_special_tokens": (True,)}
    may_tell_coverage = True
    echo: bool | None = None
    suffix: str | None = None
    best_of: Whole | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None


def parse(body: CompletionBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body for its first reply. Raises ApiError for a field that cannot be honoured."""
    if body.suffix and not isinstance(body.prompts[0], str):
        raise unsupported("suffix", "a gap is between two texts, and the prompt is token ids")
    if body.best_of not in (None, 1, body.n):
        raise unsupported("best_of", f"best_of={body.best_of} replies are not compared: every reply is sent")
    return body.first(settings, echo=bool(body.echo), n_logprobs=body.logprobs, suffix=body.suffix or None)


def others(body: PromptBody, first: ReplyRequest) -> Iterator[ReplyRequest]:
    """Yield the requests for the further replies: all to one prompt, then those to the next."""
    n = body.n or 1
    for i, prompt in enumerate(body.prompts):
        request = first if i == 0 else replace(first, prompt=_prompt(prompt))
        if n > 1:
            yield from choices(request, n, 1 if i == 0 else 0)
        elif i > 0:
            yield request


def _prompt(prompt: Any) -> Any:
    return array("i", prompt) if isinstance(prompt, list) else prompt  # 4 bytes each, while they wait


class CompletionRenderer(ChoiceRenderer):
    """A `Renderer` of text completions."""

    def __init__(self, body: CompletionBody, _request: ReplyRequest, model: str) -> None:
        super().__init__(body, model, "cmpl", "text_completion")

    def begin(self) -> None:
        """Begin a choice."""
        super().begin()
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
    return {"text": text, "finish_reason": finish_reason, "logprobs": text_logprobs(tokens, offset)}


endpoint = Endpoint("/v1/completions", CompletionBody, parse, CompletionRenderer, others)
