"""POST /v1/chat/completions: a reply to a conversation; its input_tokens, and /apply-template: how it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from edgekv.generation.logprobs import Packed

from .api_errors import ApiError, unsupported
from .body import Body, Whole
from .endpoint import Endpoint, Query, QueryWork, token_count
from .functions import FunctionFields, function_call_field
from .json_stream import Parts, progress_comment
from .message_parts import missing
from .openai_common import FINISH_REASONS, ChoiceRenderer, GenerationParams, choices, relaxed_of
from .openai_fields import ResponseFormat, chat_logprobs, tool_call_field
from .reply_request import Ended, Event, Piece, PromptProgress, ReplyRequest, ToolCall
from .request_bytes import request_bytes
from .server_settings import Settings

ROLES = {"developer": "system", "function": "tool"}  # all other roles stay
COPIES = 3  # copies of a text while it is rendered and sent


class Part(Body):
    """A part of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(Body):
    """A message of a conversation. refusal: the assistant's text in place of a content"""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tools that the assistant calls."""
        if self.function_call is not None:
            return [{"type": "function", "function": self.function_call}]
        return self.tool_calls or []


class ChatBody(FunctionFields, GenerationParams):
    """The body of a request."""

    may_tell_coverage = may_have_choices = True
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[Whole, Field(ge=-1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def check_end(self) -> None:
        """Raise ApiError if the body says that its end is another than it is: a reply goes on with the assistant's."""
        last = self.messages[-1]
        goes_on = last.role == "assistant" and not last.calls
        for name, means_so in (("add_generation_prompt", False), ("continue_final_message", True)):
            said = getattr(self, name)
            if said is not None and (said == means_so) != goes_on:
                how = "goes on with a text of the assistant that comes last, and only with that"
                what = f"{name}={str(said).lower()} does not fit the last message, of {last.role!r}: a reply {how}"
                raise unsupported(name, what)


def parse(body: ChatBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for a field that cannot be honoured."""
    body.check_end()
    schema = None if body.response_format is None else body.response_format.reply_schema()
    return ReplyRequest(
        messages=tuple(message_of(message, f"messages.{i}") for i, message in enumerate(body.messages)),
        n_logprobs=_n_logprobs(body.logprobs, body.top_logprobs),
        **body.tool_arguments(),
        **body.arguments(settings, body.max_completion_tokens, own_form="response_format", schema=schema),
    )


def message_of(message: Message, param: str) -> dict[str, Any]:
    """Return a message in the form of a `ReplyRequest`. Raises ApiError for content that is no text."""
    calls, content = message.calls, message.refusal if message.content is None else message.content
    if content is None and not calls and "content" not in message.model_fields_set:
        raise missing(f"{param}.content")
    return {
        "role": ROLES.get(message.role, message.role),
        "content": text_of(content or "", param),
        "tool_calls": calls,
    }


def text_of(content: str | list[Part], param: str) -> str:
    """Return the text of a message, which may come in parts. Raises ApiError for parts that are no text."""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type not in ("text", "refusal") or _text_of(part) is None:
            raise ApiError(
                400,
                "unsupported_value",
                f"{param}.content.{i} is of type {part.type[:40]!r}; this server reads parts of type 'text'",
                param=f"{param}.content.{i}.type",
            )
    return "\n".join(text for part in content if (text := _text_of(part)))


def _text_of(part: Part) -> str | None:
    return part.refusal if part.type == "refusal" else part.text


def _n_logprobs(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """Return the number of alternatives to tell with each token; None = tell nothing. Raises ApiError."""
    if top_logprobs and not logprobs:
        raise ApiError(400, "invalid_value", "top_logprobs needs logprobs=true; give both", param="top_logprobs")
    return (top_logprobs or 0) if logprobs else None


class ChatRenderer(ChoiceRenderer):
    """A `Renderer` of chat completions. In a stream the role comes first, as soon as a reply is certain."""

    def __init__(self, body: ChatBody, _request: ReplyRequest, model: str) -> None:
        self._calls_functions = body.calls_functions
        super().__init__(body, model, "chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion")

    def begin(self) -> None:
        """Begin a choice."""
        super().begin()
        self._has_begun = False
        self._calls: list[dict[str, Any]] = []

    def stream(self, event: Event) -> Iterator[bytes]:
        """Yield the part of a stream that tells an event."""
        if not self._has_begun:
            self._has_begun = True
            yield from self._delta({"role": "assistant", "content": ""})
        if isinstance(event, PromptProgress):
            yield progress_comment(event)
        elif isinstance(event, Piece):
            yield from self._delta({"reasoning_content" if event.reasoning else "content": event.text}, event.logprobs)
        elif isinstance(event, ToolCall):
            self.add(event)
            call = self._calls[-1]
            told = {"tool_calls": [{"index": len(self._calls) - 1} | call]}
            yield from self._delta({"function_call": call} if self._calls_functions else told)
        elif isinstance(event, Ended):
            yield from self._delta({}, finish_reason=self._finish_reason(event), edgekv=relaxed_of(event.usage))
            yield from self.end(event)

    def _delta(
        self,
        delta: dict[str, Any],
        tokens: Packed = b"",
        finish_reason: str | None = None,
        edgekv: dict[str, Any] | None = None,
    ) -> Parts:
        choice = {"delta": delta, "finish_reason": finish_reason, "logprobs": chat_logprobs(tokens)}
        return self.chunk(choice, **({"edgekv": edgekv} if edgekv else {}))

    def add(self, event: Event) -> None:
        """Take the next event of a reply that is sent whole."""
        super().add(event)
        if isinstance(event, ToolCall):
            self._calls.append(function_call_field(event) if self._calls_functions else tool_call_field(event))

    def choice(self, ended: Ended) -> dict[str, Any]:
        """Return the choice of a whole reply."""
        said, thought = ("".join(self.texts[reasoning]) for reasoning in (False, True))
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if thought:
            message["reasoning_content"] = thought
        if self._calls:
            told = {"function_call": self._calls[0]} if self._calls_functions else {"tool_calls": self._calls}
            message |= {"content": said or None} | told
        logprobs = chat_logprobs(self.tokens)
        return {"message": message, "finish_reason": self._finish_reason(ended), "logprobs": logprobs}

    def _finish_reason(self, ended: Ended) -> str:
        called = ended.reason == "tool_calls" and self._calls_functions
        return "function_call" if called else FINISH_REASONS[ended.reason]


def others(body: ChatBody, first: ReplyRequest) -> Iterator[ReplyRequest]:
    """Yield the requests for the further replies."""
    return choices(first, body.n_choices, 1)


class TemplateBody(Body):
    """A conversation, and tools that the template describes."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None


def _read(body: TemplateBody) -> tuple[tuple[Mapping[str, Any], ...], tuple[dict[str, Any], ...]]:
    messages = tuple(message_of(message, f"messages.{i}") for i, message in enumerate(body.messages))
    return messages, tuple(body.tools or ())


def apply_template(body: TemplateBody) -> QueryWork:
    """Return the request to render a conversation. Raises ApiError for a message that cannot be read."""
    messages, tools = _read(body)
    n_bytes = COPIES * request_bytes(ReplyRequest(messages=messages, tools=tools))
    return QueryWork(n_bytes, lambda runtime: {"prompt": runtime.prompt_text(messages, tools=tools)})


def count_tokens(body: TemplateBody) -> QueryWork:
    """Return the request to count a conversation's tokens. Raises ApiError for a message that cannot be read."""
    return token_count(*_read(body))


endpoint = Endpoint("/v1/chat/completions", ChatBody, parse, ChatRenderer, others)
applying = Query("/apply-template", TemplateBody, apply_template)
counting = Query("/v1/chat/completions/input_tokens", TemplateBody, count_tokens)
