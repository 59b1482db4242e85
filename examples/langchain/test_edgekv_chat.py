"""A conversation through LangChain: each message is read once, and pieces come one by one."""

import pytest
from edgekv_chat import ChatEdgeKV
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

import edgekv

PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"


@pytest.fixture
def chat():
    with (
        edgekv.Runtime(memory="320MiB", budget=256, threads=1) as runtime,
        runtime.session(history=True) as session,
    ):
        yield ChatEdgeKV(session=session, max_tokens=24)


def test_a_conversation_goes_on(chat):
    first = chat.invoke([("system", "Be brief."), ("user", PETS)])
    assert "Mia" in first.text
    second = chat.invoke([("system", "Be brief."), ("user", PETS), first, ("user", "And what is my dog called?")])
    assert "Rex" in second.text
    usage = second.usage_metadata
    assert usage["input_token_details"]["cache_read"] > usage["input_tokens"] / 2
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_chain_streams(chat):
    chain = ChatPromptTemplate.from_messages([("user", "{facts}\nWhat is my cat called?")]) | chat | StrOutputParser()
    pieces = list(chain.stream({"facts": PETS}))
    assert len(pieces) > 2
    assert "Mia" in "".join(pieces)


def test_a_reply_ends_at_a_stop_text(chat):
    assert "Mia" not in chat.invoke([("user", PETS)], stop=["Mia"]).text
