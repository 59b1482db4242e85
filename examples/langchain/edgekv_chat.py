"""A chat model for LangChain over a session of edgekv: python edgekv_chat.py FILE QUESTION..."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel, generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGenerationChunk, ChatResult

import edgekv


class ChatEdgeKV(BaseChatModel):
    """Answers conversations that go on, in one session. It reads only what the session has not read.

    session: of a runtime
    """

    session: Any
    max_tokens: int = 256
    temperature: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "edgekv"

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        history = convert_to_openai_messages(messages)
        pieces = self.session.chat(history, max_tokens=self.max_tokens, temperature=self.temperature, stop=stop)
        for piece in pieces:
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager is not None:
                run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk
        stats = self.session.stats
        usage = {
            "input_tokens": stats.reused_tokens + stats.prompt_tokens,
            "output_tokens": stats.generated_tokens,
            "total_tokens": stats.reused_tokens + stats.prompt_tokens + stats.generated_tokens,
            "input_token_details": {"cache_read": stats.reused_tokens},
        }
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=usage, chunk_position="last"))

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))


def main(path: str, *questions: str) -> None:
    conversation = [("system", "Answer in one short sentence, from the text.")]
    with edgekv.Runtime(memory="256MiB") as runtime, runtime.session(history=True) as session:
        chat = ChatEdgeKV(session=session)
        for question in questions:
            text = question if len(conversation) > 1 else f"{Path(path).read_text('utf-8')}\n\n{question}"
            conversation.append(("user", text))
            reply = chat.invoke(conversation)
            conversation.append(reply)
            usage = reply.usage_metadata
            print(reply.text)
            print(f"({usage['input_tokens']} tokens, {usage['input_token_details']['cache_read']} of them known)")


if __name__ == "__main__":
    main(*sys.argv[1:])
