"""The `langchain-openai` package against a server."""

from __future__ import annotations

from typing import Literal

import pytest
from imported_later import imported_later

pydantic = pytest.importorskip("pydantic")
langchain_openai = imported_later("langchain_openai")

CEILING = 256 << 20
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.parametrize("server", ["here"], indirect=True),
]  # over the openai package

PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"
DOG = "And what is my dog called?"


@pytest.fixture(scope="module")
def about(server):
    """Arguments of a model of LangChain."""
    return {
        "base_url": f"{server.url}/v1",
        "api_key": server.key,
        "model": server.model,
        "temperature": 0,
        "max_retries": 0,
    }


@pytest.fixture(scope="module", params=[False, True], ids=["chat_completions", "responses"])
def model(about, request):
    return langchain_openai.ChatOpenAI(use_responses_api=request.param, **about)


def test_invoke(model):
    messages = [("system", "Be brief."), ("user", PETS)]
    reply = model.invoke(messages)
    assert "Mia" in reply.text
    assert reply.usage_metadata["total_tokens"] > reply.usage_metadata["output_tokens"] > 1
    second = model.invoke([*messages, reply, ("user", DOG)])
    assert "Rex" in second.text
    assert second.usage_metadata["input_token_details"]["cache_read"] > 0


def test_stream(model):
    pieces = list(model.stream(PETS))
    assert len(pieces) > 2
    assert "Mia" in "".join(piece.text for piece in pieces)


def test_structured_output(model):
    class Cat(pydantic.BaseModel):
        """A cat."""

        name: str = pydantic.Field(max_length=12)
        colour: Literal["black", "white"]

    assert isinstance(model.with_structured_output(Cat).invoke("Name a black cat."), Cat)


def test_a_tool_is_called_whole_and_in_pieces(model):
    class Weather(pydantic.BaseModel):
        """Tells the weather."""

        city: Literal["Oslo"]

    caller = model.bind_tools([Weather], tool_choice="required", parallel_tool_calls=False)
    pieces = list(caller.stream(PETS))
    for reply in (caller.invoke(PETS), sum(pieces[1:], pieces[0])):
        (call,) = reply.tool_calls
        assert (call["name"], call["args"]) == ("Weather", {"city": "Oslo"})


def test_batch(model):
    cat, city = model.batch([PETS, "What is the capital city of France? Answer in one word."])
    assert "Mia" in cat.text
    assert "Paris" in city.text
