"""POST /api/chat and /api/generate: Ollama's API, in text."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from .api_errors import ApiError, unsupported
from .body import Body, Whole
from .endpoint import Endpoint
from .message_parts import call_of, missing, unreadable
from .ollama_lines import CHAT_PING, TEXT_PING, Lines, error_body
from .openai_common import GenerationParams
from .other_fields import REFUSED
from .reply_forms import schema_of_format
from .reply_request import ReplyRequest
from .server_settings import Settings


class Options(GenerationParams):
    """The field `options`. num_predict: a negative number = until the model ends the reply"""

    refused: ClassVar = {**REFUSED, "tfs_z": (1,)}

    num_predict: Annotated[Whole, Field(ge=-2)] | None = None
    num_ctx: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    numa: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    vocab_only: Any = None
    num_keep: Any = None
    penalize_newline: Any = None


# Options about how a model is loaded, which the server was started with, and habits that edgekv has not. Desktop
# programs send them with every request. They change nothing here, and each reply says which of them came.
NOT_APPLIED = tuple(name for name, field in Options.model_fields.items() if field.annotation is Any)


# fields of prompts that cannot be read here, and why
UNREADABLE = {
    "images": "images cannot be read here",
    "template": "the model's own chat template is used, or none with raw",
    "context": "nothing is kept as a context; send the whole conversation to /api/chat",
}


class OllamaBody(Body):
    """Fields of both endpoints. Replies are streams unless `stream` is false."""

    is_chat: ClassVar[bool] = False
    told_apart: ClassVar = ("keep_alive", "shift")  # they change nothing, and each reply says which of them came

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None

    @property
    def streams(self) -> bool:
        """True if the reply is a stream."""
        return self.stream is not False

    @property
    def asks_nothing(self) -> bool:
        """True if the body has nothing to answer, and so only loads or unloads a model."""
        raise NotImplementedError

    def not_applied(self) -> list[str]:
        """Return the names of fields that change nothing here."""
        names = [f"options.{name}" for name in NOT_APPLIED if getattr(self.options, name, None) is not None]
        names += ["think"] if isinstance(self.think, str) else []
        return names + [name for name in self.told_apart if getattr(self, name) is not None]

    def arguments(self, settings: Settings) -> dict[str, Any]:
        """Return arguments of a `ReplyRequest`. Raises ApiError."""
        options = self.options or Options()
        most = None if options.num_predict is None else max(options.num_predict, -1)
        arguments = options.arguments(settings, most, own_form="format", schema=schema_of_format(self.format))
        if self.truncate is False:
            arguments["on_overflow"] = "error"
        return arguments | {"n_logprobs": (self.top_logprobs or 0) if self.logprobs or self.top_logprobs else None}


class Message(Body):
    """A message of a conversation."""

    role: str
    content: str | None = None
    images: list[Any] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatBody(OllamaBody):
    """The body of /api/chat."""

    is_chat = True
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None

    @property
    def asks_nothing(self) -> bool:
        """True if there are no messages."""
        return not self.messages


class GenerateBody(OllamaBody):
    """The body of /api/generate. raw: the prompt goes on as it stands, without a chat template"""

    never: ClassVar = frozenset(UNREADABLE)

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None

    @property
    def asks_nothing(self) -> bool:
        """True if there is no prompt, and no gap."""
        return not self.prompt and not self.suffix


def parse_chat(body: ChatBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for a field that cannot be honoured."""
    messages = tuple(_message(message, f"messages.{i}") for i, message in enumerate(body.messages or ()))
    return ReplyRequest(messages=messages, tools=tuple(body.tools or ()), **body.arguments(settings))


def _message(message: Message, param: str) -> dict[str, Any]:
    if message.images:
        raise unsupported(f"{param}.images", "images cannot be read here")
    if message.role not in ("system", "user", "assistant", "tool"):
        raise unreadable(f"{param}.role", message.role, "messages of 'system', 'user', 'assistant' and 'tool'")
    if message.content is None and not message.tool_calls:
        raise missing(f"{param}.content")
    return {"role": message.role, "content": message.content or "", "tool_calls": _calls(message, param)}


def _calls(message: Message, param: str) -> tuple[dict[str, Any], ...]:
    found = []
    for i, call in enumerate(message.tool_calls or ()):
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            what = f"{param}.tool_calls.{i} names no function"
            raise ApiError(400, "invalid_value", what, param=f"{param}.tool_calls.{i}.function.name")
        found.append(call_of("", function["name"], function.get("arguments") or {}))
    return tuple(found)


def parse_generate(body: GenerateBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for a field that cannot be honoured."""
    for name, what in UNREADABLE.items():
        if getattr(body, name):
            raise unsupported(name, what)
    arguments = body.arguments(settings)
    if body.raw or body.suffix:
        if body.system:
            raise unsupported(
                "system", "a raw prompt, or one with a suffix, has no system message; write it into the prompt"
            )
        return ReplyRequest(prompt=body.prompt or "", suffix=body.suffix or None, **arguments)
    messages = [{"role": "system", "content": body.system}] if body.system else []
    return ReplyRequest(messages=(*messages, {"role": "user", "content": body.prompt}), **arguments)


def known(body: OllamaBody, model: str) -> dict[str, Any] | None:
    """Return the answer to a body that only loads the model, which is loaded; None = a reply is wanted.

    Raises ApiError if it is to be unloaded.
    """
    if not body.asks_nothing:
        return None
    if str(body.keep_alive).rstrip("smh") in ("0", "0.0"):
        raise unsupported("keep_alive", "the model stays loaded until the server ends; keep_alive=0 cannot unload it")
    return _lines(body, model).line("", done=True) | {"done_reason": "load"}


def render(body: OllamaBody, _request: ReplyRequest, model: str) -> Lines:
    """Return the renderer of a reply."""
    return _lines(body, model)


def _lines(body: OllamaBody, model: str) -> Lines:
    hides = body.think is False
    return Lines(model, is_chat=body.is_chat, hides_thoughts=hides, not_applied=body.not_applied())


_shared: dict[str, Any] = {"error_body": error_body, "known": known, "stream_type": "application/x-ndjson"}

chatting = Endpoint("/api/chat", ChatBody, parse_chat, render, ping=CHAT_PING, **_shared)
generating = Endpoint("/api/generate", GenerateBody, parse_generate, render, ping=TEXT_PING, **_shared)
