"""A conversation through LlamaIndex: each message is read once, and pieces come one by one."""

import pytest
from edgekv_llm import EdgeKV
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.chat_engine import SimpleChatEngine

import edgekv

PETS = "My cat is called Mia and my dog is called Rex."


@pytest.fixture
def llm():
    with (
        edgekv.Runtime(memory="512MiB", budget=256, threads=1) as runtime,
        runtime.session(history=True) as session,
    ):
        yield EdgeKV(session=session, max_tokens=24)


def test_a_chat_engine_goes_on(llm):
    document = ChatMessage(role=MessageRole.SYSTEM, content=PETS)
    engine = SimpleChatEngine.from_defaults(llm=llm, prefix_messages=[document])
    assert "Mia" in str(engine.chat("What is my cat called?"))
    n_read = llm.session.stats.prompt_tokens
    assert "Rex" in str(engine.chat("And what is my dog called?"))
    assert llm.session.stats.reused_tokens >= n_read


def test_a_text_is_completed_piece_by_piece(llm):
    pieces = [response.delta for response in llm.stream_complete(f"{PETS} What is my cat called?")]
    assert len(pieces) > 2
    assert "".join(pieces) == llm.complete(f"{PETS} What is my cat called?").text
