"""POST /completion and /infill: llama.cpp's own form of a text completion, and a gap between two texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from edgekv.generation.logprobs import Packed, Token, TokenLogprob, unpacked
from edgekv.generation.sampler import Sampling

from .body import Body, Whole
from .completions import PromptBody, others
from .endpoint import Endpoint
from .json_stream import LazyList, Parts, sse_event
from .openai_common import GenerationParams, edgekv_of, error_event, timings_of
from .openai_fields import told
from .other_fields import REFUSED
from .reply_request import Ended, Event, Piece, ReplyRequest
from .server_settings import Settings

STOP_TYPES = {"stop": "eos", "length": "limit", "loop": "none", "cancelled": "none", "tool_calls": "eos"}


FieldPath = Annotated[str, Field(max_length=128)]


class LlamaParams(GenerationParams):
    """Fields of both endpoints.

    n_probs: alternatives to tell with each token; return_tokens: tell the ids of the reply's tokens
    response_fields: the fields of the answer, or paths to them such as "timings/predicted_ms"; none = all
    not_applied: names of fields that change nothing here; the answer tells which of them came
    """

    not_applied: ClassVar[tuple[str, ...]] = ()
    refused: ClassVar = {**REFUSED, "post_sampling_probs": (False,)}

    n_probs: Annotated[Whole, Field(ge=0, le=20)] = 0
    return_tokens: bool = False
    response_fields: Annotated[list[FieldPath], Field(max_length=64)] | None = None

    @property
    def n_logprobs(self) -> int | None:
        """The number of alternatives to each token; None = the reply says nothing about its tokens."""
        return self.n_probs if self.n_probs or self.return_tokens else None


class LlamaBody(LlamaParams, PromptBody):
    """The body of /completion."""


class File(Body):
    """Another file that belongs to a gap."""

    filename: str = "unnamed"
    text: str


class InfillBody(LlamaParams):
    """The body of /infill. prompt: a text between the prefix and the gap"""

    # editors send these all the same: times for reading and for the reply, and habits of samplers of llama.cpp's
    not_applied = ("samplers", "n_indent", "t_max_predict_ms", "t_max_prompt_ms")

    input_prefix: str
    input_suffix: str
    input_extra: tuple[File, ...] = ()
    prompt: str = ""
    samplers: Any = None
    n_indent: Any = None
    t_max_predict_ms: Any = None
    t_max_prompt_ms: Any = None


def parse(body: LlamaBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body for its first reply. Raises ApiError for a field that cannot be honoured."""
    return body.first(settings, n_logprobs=body.n_logprobs)


def parse_infill(body: InfillBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for a field that cannot be honoured."""
    return ReplyRequest(
        prompt=body.input_prefix + body.prompt,
        suffix=body.input_suffix,
        files=tuple((file.filename, file.text) for file in body.input_extra),
        n_logprobs=body.n_logprobs,
        **body.arguments(settings),
    )


class LlamaRenderer:
    """A `Renderer` of llama.cpp's completions."""

    fail = staticmethod(error_event)

    def __init__(self, body: LlamaBody | InfillBody, request: ReplyRequest, model: str) -> None:
        # it waits with the request, whose long texts lie on the disk, so it keeps neither these nor the body
        self._request = replace(request, prompt=None, suffix=None, files=())
        self._model = model
        self._n_choices = body.n_choices
        self._n_probs = body.n_probs
        self._returns_tokens = body.return_tokens
        self._streams = body.streams
        self._fields = body.response_fields
        self._not_applied = [name for name in body.not_applied if getattr(body, name)]
        self._whole: list[dict[str, Any]] = []
        self._begin()

    def _begin(self) -> None:
        self._texts: list[str] = []
        self._tokens = bytearray()
        self._has_line = False

    def stream(self, event: Event) -> Parts:
        """Return the part of a stream that tells an event."""
        if isinstance(event, Piece):
            self._has_line = self._has_line or "\n" in event.text
            part = {"index": len(self._whole), "content": event.text, "stop": False} | self._of_tokens(event.logprobs)
            return sse_event(part)
        return sse_event(self._end(event)) if isinstance(event, Ended) else ()

    def add(self, event: Event) -> None:
        """Take the next event of a reply that is sent whole."""
        if isinstance(event, Piece):
            self._texts.append(event.text)
            self._has_line = self._has_line or "\n" in event.text
            self._tokens += event.logprobs
        elif isinstance(event, Ended):
            self._end(event)

    def whole(self) -> Any:
        """Return the whole reply, after its last event: an object, or for several prompts a list of them."""
        return self._whole if self._n_choices > 1 else self._whole[0]

    def _end(self, ended: Ended) -> dict[str, Any]:
        usage, tokens = ended.usage, bytes(self._tokens)
        about = edgekv_of(usage, ended.reason)
        if self._not_applied:
            about["not_applied"] = self._not_applied
        found: dict[str, Any] = {
            "index": len(self._whole),
            "content": "".join(self._texts),
            "stop": True,
            "model": self._model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.kept,
            "generation_settings": self._settings(),
            "has_new_line": self._has_line,
            "truncated": False,  # tokens that do not fit are evicted, and `edgekv` tells how many
            "stop_type": "word" if ended.stop_text else STOP_TYPES[ended.reason],
            "stopping_word": ended.stop_text or "",
            "timings": timings_of(usage),
            "edgekv": about,
        } | self._of_tokens(tokens)
        if self._fields:
            found = {path: value for path in self._fields for value in _at(found, path)}
        self._whole.append(found)
        self._begin()
        return found

    def _of_tokens(self, packed: Packed) -> dict[str, Any]:
        found: dict[str, Any] = {"tokens": []}
        if self._returns_tokens:
            found["tokens"] = LazyList(lambda: (token.id for token in unpacked(packed)))
        if self._n_probs:
            found["completion_probabilities"] = LazyList(lambda: map(_told, unpacked(packed)))
        return found

    def _settings(self) -> dict[str, Any]:
        """Return how the reply was generated, by llama.cpp's names."""
        request = self._request
        return sampling_of(request.sampling, request.max_tokens) | {
            "stop": list(request.stop),
            "ignore_eos": request.ignore_eos,
            "n_probs": self._n_probs,
            "stream": self._streams,
        }


def sampling_of(sampling: Sampling, max_tokens: int | None) -> dict[str, Any]:
    """Return a sampling and the longest reply by llama.cpp's names."""
    penalties = ("repeat_penalty", "presence_penalty", "frequency_penalty")
    names = ("seed", "temperature", "top_k", "top_p", "min_p", *penalties)
    longest = -1 if max_tokens is None else max_tokens
    return {name: getattr(sampling, name) for name in names} | {
        "repeat_last_n": sampling.repeat_last,
        "n_predict": longest,
        "max_tokens": longest,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in sampling.biases],
    }


def _told(token: Token) -> dict[str, Any]:
    return _named(token) | {"top_logprobs": [_named(other) for other in token.top]}


def _named(token: Token | TokenLogprob) -> dict[str, Any]:
    return {"id": token.id} | told(token)


def _at(value: Any, path: str) -> Iterator[Any]:
    """Yield the value at a path of names, if there is one."""
    for name in path.split("/"):
        if not isinstance(value, dict) or name not in value:
            return
        value = value[name]
    yield value


completing = Endpoint("/completion", LlamaBody, parse, LlamaRenderer, others)
infilling = Endpoint("/infill", InfillBody, parse_infill, LlamaRenderer)
