"""A model for LlamaIndex over a session of edgekv: python edgekv_llm.py FILE QUESTION..."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import CustomLLM

import edgekv


class EdgeKV(CustomLLM):
    """Answers conversations that go on, in one session. It reads only what the session has not read.

    session: of a runtime
    """

    session: Any
    max_tokens: int = 256
    temperature: float = 0.0

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=1 << 20, num_output=self.max_tokens, is_chat_model=True, model_name="edgekv")

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        history = [{"role": message.role.value, "content": message.content or ""} for message in messages]
        said = ""
        for piece in self.session.chat(history, max_tokens=self.max_tokens, temperature=self.temperature):
            said += piece
            yield ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=said), delta=piece)

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        *_, last = self.stream_chat(messages)
        return last

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        for response in self.stream_chat([ChatMessage(role=MessageRole.USER, content=prompt)]):
            yield CompletionResponse(text=response.message.content, delta=response.delta)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.chat([ChatMessage(role=MessageRole.USER, content=prompt)]).message.content)


def main(path: str, *questions: str) -> None:
    with edgekv.Runtime(memory="512MiB") as runtime, runtime.session(history=True) as session:
        document = ChatMessage(role=MessageRole.SYSTEM, content=Path(path).read_text("utf-8"))
        engine = SimpleChatEngine.from_defaults(llm=EdgeKV(session=session), prefix_messages=[document])
        for question in questions:
            print(engine.chat(question))
            print(f"({session.stats.prompt_tokens} tokens read, {session.stats.reused_tokens} known)")


if __name__ == "__main__":
    main(*sys.argv[1:])
