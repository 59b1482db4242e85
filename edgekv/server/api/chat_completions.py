"""POST /v1/chat/completions: a reply to a conversation; its input_tokens, and /apply-template: how it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from edgekv.generation.logprobs import Packed
from edgekv.server.admission import request_bytes
from edgekv.server.api_errors import ApiError, unsupported
from edgekv.server.json_stream import Parts, progress_comment
from edgekv.server.reply_request import Ended, Event, Piece, PromptProgress, ReplyRequest, ToolCall
from edgekv.server.server_settings import Settings

from .body import Body
from .endpoint import Endpoint, Query, Work, token_count
from .message_parts import missing
from .openai_common import FINISH_REASONS, ChoiceRenderer, GenerationParams, choices, relaxed_of
from .openai_fields import ResponseFormat, chat_logprobs, tool_call_field

COPIES = 3  # copies of a text while it is rendered and sent


class Part(Body):
    """A part of a message."""

    type: str
    text: str | None = None


class Message(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatBody(GenerationParams):
    """The body of a request."""

    may_tell_coverage = may_have_choices = True
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=-1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def check_end(self) -> None:
        """Raise ApiError if the body says that its end is another than it is: a reply goes on with the assistant's."""
        last = self.messages[-1]
        goes_on = last.role == "assistant" and not last.tool_calls
        for name, means_so in (("add_generation_prompt", False), ("continue_final_message", True)):
            said = getattr(self, name)
            if said is not None and (said == means_so) != goes_on:
                how = "goes on with a text of the assistant that comes last, and only with that"
                what = f"{name}={str(said).lower()} does not fit the last message, of {last.role!r}: a reply {how}"
                raise unsupported(name, what)


def parse(body: ChatBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for what cannot be done here."""
    body.check_end()
    schema = None if body.response_format is None else body.response_format.reply_schema()
    return ReplyRequest(
        messages=tuple(message_of(message, f"messages.{i}") for i, message in enumerate(body.messages)),
        n_logprobs=_n_logprobs(body.logprobs, body.top_logprobs),
        tools=tuple(body.tools or ()),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        **body.arguments(settings, body.max_completion_tokens, own_form="response_format", schema=schema),
    )


def message_of(message: Message, param: str) -> dict[str, Any]:
    """Return a message as a `ReplyRequest` has it. Raises ApiError for one that cannot be read here."""
    if message.content is None and not message.tool_calls:
        raise missing(f"{param}.content")
    role = "system" if message.role == "developer" else message.role
    content = "" if message.content is None else text_of(message.content, param)
    return {"role": role, "content": content, "tool_calls": message.tool_calls or ()}


def text_of(content: str | list[Part], param: str) -> str:
    """Return the text of a message, which may come in parts. Raises ApiError for parts that are no text."""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise ApiError(
                400,
                "unsupported_value",
                f"{param}.content.{i} is of type {part.type[:40]!r}; this server reads parts of type 'text'",
                param=f"{param}.content.{i}.type",
            )
    return "\n".join(part.text for part in content if part.text)


def _n_logprobs(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """Return the number of alternatives to tell with each token; None = tell nothing. Raises ApiError."""
    if top_logprobs and not logprobs:
        raise ApiError(400, "invalid_value", "top_logprobs needs logprobs=true; give both", param="top_logprobs")
    return (top_logprobs or 0) if logprobs else None


class ChatRenderer(ChoiceRenderer):
    """A `Renderer` of chat completions. In a stream the role comes first, as soon as a reply is certain."""

    def __init__(self, body: ChatBody, _request: ReplyRequest, model: str) -> None:
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
            yield from self._delta({"tool_calls": [{"index": len(self._calls) - 1} | self._calls[-1]]})
        elif isinstance(event, Ended):
            yield from self._delta({}, finish_reason=FINISH_REASONS[event.reason], edgekv=relaxed_of(event.usage))
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
            self._calls.append(tool_call_field(event))

    def choice(self, ended: Ended) -> dict[str, Any]:
        """Return the choice of a whole reply."""
        said, thought = ("".join(self.texts[reasoning]) for reasoning in (False, True))
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if thought:
            message["reasoning_content"] = thought
        if self._calls:
            message |= {"content": said or None, "tool_calls": self._calls}
        finish_reason, logprobs = FINISH_REASONS[ended.reason], chat_logprobs(self.tokens)
        return {"message": message, "finish_reason": finish_reason, "logprobs": logprobs}


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


def apply_template(body: TemplateBody) -> Work:
    """Return the rendering of a conversation. Raises ApiError for what cannot be read here."""
    messages, tools = _read(body)
    n_bytes = COPIES * request_bytes(ReplyRequest(messages=messages, tools=tools))
    return Work(n_bytes, lambda runtime: {"prompt": runtime.prompt_text(messages, tools=tools)})


def count_tokens(body: TemplateBody) -> Work:
    """Return the counting of a conversation's tokens. Raises ApiError for what cannot be read here."""
    return token_count(*_read(body))


endpoint = Endpoint("/v1/chat/completions", ChatBody, parse, ChatRenderer, others)
applying = Query("/apply-template", TemplateBody, apply_template)
counting = Query("/v1/chat/completions/input_tokens", TemplateBody, count_tokens)
