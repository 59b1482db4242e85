"""Names that other libraries have for what edgekv has: the error says what to write in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

_REPLIES = "session.reply(prompt) returns a whole reply, and session.chat(prompt) yields pieces"
_SESSION = "rt.session() begins a conversation, which has reply, chat, ask and generate"
_EMBEDS = "edgekv embeds no texts"
_CALLS = (
    *("create_chat_completion", "create_completion", "chat_completion", "complete", "completion", "completions"),
    *("response", "responses", "invoke", "stream", "prompt"),
)

MODULE = {
    **dict.fromkeys(
        ("Llama", "LLM", "Model", "AutoModelForCausalLM", "pipeline", "load", "load_model"),
        "edgekv.Runtime(model) opens a model",
    ),
    **dict.fromkeys(
        ("OpenAI", "AsyncOpenAI", "Anthropic", "Client", "AsyncClient"),
        "edgekv.Runtime(model) opens a model in this process; clients of HTTP ask `edgekv serve`",
    ),
    **dict.fromkeys(
        ("chat", "completion", "generate", "complete", "reply", "ask", "stream", "stream_generate"),
        f"open a model with rt = edgekv.Runtime(model); {_SESSION}",
    ),
    **dict.fromkeys(("embed", "embeddings"), _EMBEDS),
}
RUNTIME = {
    **dict.fromkeys(_CALLS, _SESSION),
    **dict.fromkeys(("chat", "reply", "ask", "generate"), _SESSION),
    **dict.fromkeys(("new_session", "start_session", "start_chat", "conversation", "reset"), _SESSION),
    **dict.fromkeys(("embed", "embeddings", "create_embedding"), _EMBEDS),
    **dict.fromkeys(("detokenize", "decode"), "give rt.text_of(tokens)"),
    **dict.fromkeys(("encode", "tokenizer"), "give rt.tokenize(text)"),
    **dict.fromkeys(("save_state", "load_state"), "a session has snapshot, restore and save"),
    "n_ctx": "a text of any length fits; rt.plan.budget_cells are the cells of a head",
    "stats": "a reply has stats, and so has its session",
}
SESSION = {
    **dict.fromkeys(_CALLS, _REPLIES),
    **dict.fromkeys(("send", "send_message", "say", "respond", "run"), _REPLIES),
    **dict.fromkeys(("achat", "ainvoke", "astream"), "reply_async and chat_async are for asyncio"),
    **dict.fromkeys(("messages", "history"), "turns() and text() give what was read and said"),
    **dict.fromkeys(("reset", "clear"), "close it, and begin another with rt.session()"),
    "load": "rt.load_session(path) opens a saved session",
}
# options of `Runtime.session`
SYSTEM = {
    **dict.fromkeys(("system_prompt", "system_message", "system_instruction", "instructions"), "give system="),
    "messages": "give them to session.reply(messages)",
}
_TEXT = "reply.text is its text"
REPLY = {
    **dict.fromkeys(("choices", "content", "response", "output", "outputs", "output_text", "generated_text"), _TEXT),
    "usage": "reply.stats has its figures",
    "logprobs": "reply.tokens has them if the reply was asked for logprobs=",
    "json": "json.loads(reply.text) reads what json_schema= asked for",
}
PIECES = dict.fromkeys(
    (*REPLY, "text", "stats", "message", "finish_reason", "tool_calls", "tokens"),
    "a reply is generated while you iterate over its pieces; session.reply(prompt) returns a whole one",
)
STATS = {
    "completion_tokens": "it is generated_tokens",
    "input_tokens": "it is prompt_tokens",
    "output_tokens": "it is generated_tokens",
    "total_tokens": "it is prompt_tokens + generated_tokens",
}


def attribute_error(owner: object, whose: str, name: str, meant: Mapping[str, str]) -> AttributeError:
    """Return the error of an attribute that is not there."""
    remedy = f"; {meant[name]}" if name in meant else ""
    return AttributeError(f"{whose} has no attribute {name!r}{remedy}", name=name, obj=owner)


class OtherNames:
    """Base of classes that know the names which other libraries have for their attributes."""

    __slots__ = ()
    _meant: ClassVar[Mapping[str, str]]

    if not TYPE_CHECKING:  # a checker of types knows which attributes there are

        def __getattr__(self, name):
            raise attribute_error(self, f"{type(self).__name__!r} object", name, self._meant)
