"""Plug-in for llm: models of edgekv, with prompts of any length inside a memory ceiling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import llm
from pydantic import Field

import edgekv
from edgekv.models import known_models
from edgekv.models.caches import found_models

NAME = "edgekv"


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the model that comes with edgekv, and those that have names on this machine."""
    default, *others = known_models()
    register(EdgeKVModel(NAME, default.name))
    for name in [*(known.name for known in others), *(model.name for model in found_models())]:
        register(EdgeKVModel(f"{NAME}/{name}", name))


class _Loaded:
    """The one runtime of this process, and the session of the conversation that came last."""

    def __init__(self) -> None:
        self._key: tuple[str, str | None] | None = None
        self._runtime: edgekv.Runtime | None = None
        self._session: edgekv.Session | None = None
        self._conversation: str | None = None

    def session(self, model: str, memory: str | None, conversation: str | None) -> edgekv.Session:
        """Return the session of a conversation, with its model loaded under a ceiling. None = a prompt alone"""
        if self._runtime is None or self._key != (model, memory):
            self.close()
            self._runtime = edgekv.Runtime(model, memory=memory)
            self._key = model, memory
        if self._session is None or conversation is None or conversation != self._conversation:
            if self._session is not None:
                self._session.close()
                self._session = None
            self._session, self._conversation = self._runtime.session(), conversation
        return self._session

    def close(self) -> None:
        """Free the model."""
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = self._session = self._key = self._conversation = None


_LOADED = _Loaded()


class EdgeKVModel(llm.Model):
    """A model of edgekv. name: path of a GGUF file, or a name of `edgekv models list`"""

    can_stream = True

    class Options(llm.Options):
        """Options of a prompt, as `llm -o NAME VALUE` gives them."""

        memory: str | None = Field(default=None, description="Memory ceiling of the whole process, as 512MiB or 25%")
        max_tokens: int | None = Field(default=None, description="Longest reply, in tokens")
        temperature: float | None = Field(default=None, description="0 = always the most likely token")

    def __init__(self, model_id: str, name: str) -> None:
        self.model_id = model_id
        self.name = name

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None,
    ) -> Iterator[str]:
        """Yield the pieces of a reply. Raises llm.ModelError for what edgekv refuses."""
        options: dict[str, Any] = {}
        if prompt.options.max_tokens is not None:
            options["max_tokens"] = prompt.options.max_tokens
        if prompt.options.temperature is not None:
            options["temperature"] = prompt.options.temperature
        try:
            key = None if conversation is None else conversation.id
            session = _LOADED.session(self.name, prompt.options.memory, key)
            yield from session.chat(_messages(prompt, conversation), **options)
        except edgekv.EdgeKVError as error:
            raise llm.ModelError(str(error)) from error
        response.set_usage(input=session.stats.prompt_tokens, output=session.stats.generated_tokens)

    def __str__(self) -> str:
        return f"edgekv: {self.model_id}"


def _messages(prompt: llm.Prompt, conversation: llm.Conversation | None) -> list[dict[str, str]]:
    """Return a prompt as messages, after those of its conversation."""
    earlier = [] if conversation is None else conversation.responses
    system = next((text for it in (*(response.prompt for response in earlier), prompt) if (text := it.system)), None)
    messages = [{"role": "system", "content": system}] if system else []
    for response in earlier:
        messages.append({"role": "user", "content": response.prompt.prompt})
        messages.append({"role": "assistant", "content": response.text_or_raise()})
    return [*messages, {"role": "user", "content": prompt.prompt}]
