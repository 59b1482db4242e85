"""Fields that OpenAI's endpoints share: parameters of a reply, errors and usage."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

import edgekv
from edgekv.generation.request import MAX_TOKENS
from edgekv.generation.sampler import ANY_SEED, CONVERSATION, MAX_REPEAT_LAST, MAX_SEED, Sampling

from .api_errors import ApiError, unsupported
from .body import Body, Number, Whole
from .edgekv_params import EdgekvParams
from .json_stream import DONE, Parts, sse_event
from .llama_fields import LlamaFields, biases
from .other_fields import REFUSED, Off
from .reply_forms import FormFields
from .reply_request import Ended, Event, Piece, Reason, ReplyRequest, Usage
from .server_settings import Settings

FINISH_REASONS: dict[Reason, str] = {
    "stop": "stop",
    "length": "length",
    "loop": "stop",  # OpenAI has no word for it; the `edgekv` object says it
    "cancelled": "stop",
    "tool_calls": "tool_calls",
}

MOST_CHOICES = 128  # replies of one body

Stops = str | Annotated[list[str | None], Field(max_length=16)] | None  # an empty text ends nothing


class StreamOptions(Body):
    """The field `stream_options`."""

    include_usage: bool | None = None


class GenerationParams(FormFields, LlamaFields):
    """Parameters of a reply: fields of every endpoint. Defaults are those of `edgekv chat`.

    max_tokens: -1 = until the model ends the reply; 0 = read the prompt and generate nothing
    top_p: a number above 1 turns it off, as 1 does; top_k: -1 turns it off, as 0 does
    repetition_penalty: vLLM's name of repeat_penalty

    refused: fields that would change the reply in a way that edgekv cannot, with the values that turn them off. Other
        unknown fields are ignored
    """

    model_config = ConfigDict(extra="allow")

    refused: ClassVar[Mapping[str, Off]] = REFUSED
    may_tell_coverage: ClassVar[bool] = False
    may_have_choices: ClassVar[bool] = False

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Number, Field(ge=0)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, le=1 << 20)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[Number, Field(ge=1, le=10)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=1, le=10)] | None = None
    seed: Annotated[Whole, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    max_tokens: Annotated[Whole, Field(ge=-1)] | None = None
    stop: Stops = None
    stop_token_ids: Annotated[list[Annotated[Whole, Field(ge=0, lt=1 << 31)]], Field(max_length=64)] | None = None
    min_tokens: Annotated[Whole, Field(ge=0)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Any] | list[tuple[Any, Any]] | None = None
    user: str | None = None
    edgekv: EdgekvParams = EdgekvParams()

    @property
    def streams(self) -> bool:
        """True if the reply is a stream."""
        return bool(self.stream)

    @property
    def n_choices(self) -> int:
        """The number of replies that the body asks for."""
        return self.n or 1

    def check(self) -> None:
        """Raise ApiError for fields that are known and not supported here."""
        if self.edgekv.coverage and not (self.stream and self.may_tell_coverage):
            raise unsupported("edgekv.coverage", "only streams of completions tell what is kept")
        if self.n_choices > 1 and not self.may_have_choices:
            raise unsupported("n", f"n={self.n} replies cannot be had here: only completions give several")
        if self.n_choices > MOST_CHOICES:
            what = f"{self.n_choices} replies cannot be had of one request; ask for at most {MOST_CHOICES}"
            raise ApiError(400, "invalid_value", what, param="n" if self.n and self.n > MOST_CHOICES else "prompt")
        if self.n_choices > 1 and self.edgekv.coverage:
            raise unsupported("edgekv.coverage", "what is kept is told of one reply, and not of several")
        if self.stream_options is not None and not self.streams:
            raise unsupported("stream_options", "stream_options is about streams; give stream=true")
        for name, value in (self.model_extra or {}).items():
            off = self.refused.get(name)
            if off is not None and value is not None and value not in off:
                remedy = f"; give {off[0]!r}, which turns it off" if off else ""
                raise unsupported(name, f"{name} is not possible here{remedy}")

    def arguments(
        self, settings: Settings, max_tokens: int | None = None, *, own_form: str = "", schema: Any = None
    ) -> dict[str, Any]:
        """Return arguments of a `ReplyRequest`.

        max_tokens: value of another field, which comes first
        own_form: the API's own field for the form of a reply; schema: the JSON schema in it
        """
        self.check()
        focus = False if self.edgekv.focus is None and not settings.focus else self.edgekv.focus
        given = [most for most in (max_tokens, self.max_tokens, self.n_predict) if most is not None]
        longest = given[0] if given else MAX_TOKENS
        if self.ignore_eos and longest == -1:
            what = "ignore_eos needs a length, since nothing else ends the reply; give max_tokens"
            raise ApiError(400, "invalid_value", what, param="ignore_eos")
        return {
            "sampling": self.sampling(),
            "max_tokens": None if longest == -1 else longest,
            "stop": stop_texts(self.stop),
            "stop_tokens": tuple(self.stop_token_ids or ()),
            "min_tokens": self.min_tokens or 0,
            "ignore_eos": bool(self.ignore_eos),
            "focus": tuple(focus) if isinstance(focus, list) else focus,
            "on_overflow": self.edgekv.on_overflow,
            "coverage": self.edgekv.coverage,
            "user": self.user or "",
            "n_choices": self.n_choices,
            **self.form(own_form, schema),
        }

    def sampling(self) -> Sampling:
        """Return the sampling. Fields that are not given have the defaults of docs/server-api.md. Raises ApiError."""
        named = {
            name: value
            for name in ("temperature", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty")
            if (value := getattr(self, name)) is not None
        }
        if self.repetition_penalty is not None:
            named.setdefault("repeat_penalty", self.repetition_penalty)
        if self.top_p is not None:
            named["top_p"] = min(self.top_p, 1.0)
        if self.top_k is not None:
            named["top_k"] = max(self.top_k, 0)
        if self.repeat_last_n == 0:
            named |= {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
        elif self.repeat_last_n is not None:
            named["repeat_last"] = MAX_REPEAT_LAST if self.repeat_last_n == -1 else self.repeat_last_n
        if self.logit_bias:
            named["logit_bias"] = biases(self.logit_bias)
        seed = self.seed
        if seed is not None:  # llama.cpp reads 32 bits; all ones mean a random seed
            seed = None if seed in (ANY_SEED, MAX_SEED + 1) else seed % (MAX_SEED + 1)
        return replace(CONVERSATION, **named, seed=seed)


def stop_texts(given: Stops) -> tuple[str, ...]:
    """Return the texts that end a reply."""
    return tuple(text for text in ([given] if isinstance(given, str) else given or ()) if text)


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an error."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    if error.status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_event(error: ApiError) -> Parts:
    """Return the end of a stream that cannot go on."""
    return sse_event(error_body(error))


def timings_of(usage: Usage) -> dict[str, Any]:
    """Return llama.cpp's object `timings`: tokens read and generated, milliseconds and tokens a second."""
    n_read = usage.prompt_tokens - usage.cached_tokens
    parts = (("prompt", n_read, usage.prefill_s), ("predicted", usage.completion_tokens, usage.decode_s))
    timings: dict[str, Any] = {"cache_n": usage.cached_tokens}
    for name, n_tokens, seconds in parts:
        timings |= {
            f"{name}_n": n_tokens,
            f"{name}_ms": 1e3 * seconds,
            f"{name}_per_token_ms": 1e3 * seconds / n_tokens if n_tokens else 0.0,
            f"{name}_per_second": n_tokens / seconds if seconds > 0 else 0.0,
        }
    return timings


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's object `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def edgekv_of(usage: Usage, reason: Reason, not_applied: Sequence[str] = ()) -> dict[str, Any]:
    """Return the object `edgekv`: tokens seen and kept, memory, and the parts of tools' schemas that were relaxed.

    not_applied: names of the request's parts that were left out
    """
    names = ("seen", "kept", "evicted", "archived", "evictions", "peak_bytes", "ceiling_bytes", "budget")
    told = {name: getattr(usage, name) for name in names} | {"finish_reason": reason} | relaxed_of(usage)
    told |= {"archive_failed": True} if usage.archive_failed else {}
    return told | ({"not_applied": [*not_applied]} if not_applied else {})


def relaxed_of(usage: Usage) -> dict[str, Any]:
    """Return the part of the object `edgekv` that says which schemas of tools were relaxed, if any was."""
    return {"relaxed_tools": usage.relaxed_tools} if usage.relaxed_tools else {}


def choices(request: ReplyRequest, n: int, first: int = 0) -> Iterator[ReplyRequest]:
    """Yield the requests for replies [first, n) to one prompt, each with a seed of its own."""
    seed = secrets.randbits(31) if request.sampling.seed is None else request.sampling.seed
    for i in range(first, n):
        yield replace(request, sampling=replace(request.sampling, seed=(seed + i) % (MAX_SEED + 1)))


class ChoiceRenderer:
    """The part of a `Renderer` that OpenAI's two completions share: choices one after another, and chunks of them.

    index: number of the choice whose events come
    """

    fail = staticmethod(error_event)

    def __init__(self, body: GenerationParams, model: str, id_prefix: str, kind: str) -> None:
        self._about = {
            "id": f"{id_prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"edgekv-{edgekv.__version__}",
        }
        self._with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._n_choices = body.n_choices
        self._n_each = body.n or 1  # choices of a prompt
        self._choices: list[dict[str, Any]] = []
        self._ended: Ended | None = None  # has the usage of all choices so far
        self.index = 0
        self.begin()

    def begin(self) -> None:
        """Begin a choice."""
        self.texts: dict[bool, list[str]] = {False: [], True: []}  # pieces of the answer, and of reasoning
        self.tokens = bytearray()

    def choice(self, ended: Ended) -> dict[str, Any]:
        """Return the choice of a whole reply."""
        raise NotImplementedError

    def chunk(self, choice: dict[str, Any], **further: Any) -> Parts:
        """Return a chunk of a stream with a part of the choice. further: other fields of the chunk"""
        usage = {"usage": None} if self._with_usage else {}
        return sse_event(self._about | {"choices": [{"index": self.index} | choice]} | usage | further)

    def end(self, ended: Ended) -> Iterator[bytes]:
        """Yield the chunks that end a choice in a stream; after the last choice also the end of the stream."""
        self._next(ended)
        if self.index < self._n_choices:
            return
        for part in ended.coverage or ():
            yield from sse_event(self._about | {"choices": [], "edgekv": {"coverage": part}})
        if self._with_usage:
            yield from sse_event(self._about | {"choices": []} | self._figures())
        yield DONE

    def add(self, event: Event) -> None:
        """Take the next event of a reply that is sent whole."""
        if isinstance(event, Piece):
            self.texts[event.reasoning].append(event.text)
            self.tokens += event.logprobs
        elif isinstance(event, Ended):
            self._choices.append({"index": self.index} | self.choice(event))
            self._next(event)

    def whole(self) -> dict[str, Any]:
        """Return the whole reply, after its last event."""
        return self._about | {"choices": self._choices} | self._figures()

    def _next(self, ended: Ended) -> None:
        """Count the figures of a choice, and begin the next one. The prompt of several choices counts once."""
        usage = ended.usage
        if self._ended is not None:
            usage = usage.beside(self._ended.usage, with_prompt=self.index % self._n_each == 0)
        self._ended = replace(ended, usage=usage, coverage=None)
        self.index += 1
        self.begin()

    def _figures(self) -> dict[str, Any]:
        """Return OpenAI's object `usage`, llama.cpp's `timings`, and `edgekv`."""
        assert self._ended is not None
        usage, reason = self._ended.usage, self._ended.reason
        return {"usage": usage_of(usage), "timings": timings_of(usage), "edgekv": edgekv_of(usage, reason)}
