"""The `ollama` package against a server."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from imported_later import imported_later

pydantic = pytest.importorskip("pydantic")
ollama = imported_later("ollama")

pytestmark = pytest.mark.parametrize("server", ["here"], indirect=True)

PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"
HELLO = [{"role": "user", "content": PETS}]
SURELY = {"temperature": 0, "num_predict": 40}


@pytest.fixture(scope="module")
def about(server):
    return {"host": server.url, "headers": {"Authorization": f"Bearer {server.key}"}}


@pytest.fixture(scope="module")
def client(about):
    with ollama.Client(**about) as client:
        yield client


def test_models(client, server):
    (listed,) = client.list().models
    assert listed.model == f"{server.model}:latest"
    assert [it.model for it in client.ps().models] == [listed.model]
    assert "completion" in client.show(server.model).capabilities


def test_what_clients_show_of_a_model(client, server):
    (listed,), (running,) = client.list().models, client.ps().models
    shown = client.show(server.model)
    for found in (listed, running):
        assert found.size > 0
        assert found.digest
    for details in (listed.details, running.details, shown.details):
        assert all((details.format, details.family, details.parameter_size, details.quantization_level))
    assert all((listed.modified_at, running.expires_at, shown.modified_at, shown.license, shown.modelfile))
    assert all((shown.template, shown.parameters, shown.modelinfo))


def test_chat(client, server):
    reply = client.chat(server.model, HELLO, options=SURELY | {"num_predict": 600})  # until it ends
    assert "Mia" in reply.message.content
    assert (reply.done, reply.done_reason) == (True, "stop")
    assert reply.prompt_eval_count > reply.eval_count > 1
    assert reply.total_duration >= reply.eval_duration > 0


def test_chat_in_pieces(client, server):
    *pieces, last = client.chat(server.model, HELLO, options=SURELY, stream=True)
    assert len(pieces) > 2
    assert "Mia" in "".join(piece.message.content for piece in pieces)
    assert last.done


def test_chat_of_an_asyncio_program(about, server):
    async def said():
        async with ollama.AsyncClient(**about) as client:
            reply = await client.chat(server.model, HELLO, options=SURELY)
            return reply.message.content

    assert "Mia" in asyncio.run(said())


def test_a_text(client, server):
    reply = client.generate(server.model, "The capital of France is", raw=True, options=SURELY | {"num_predict": 4})
    assert "Paris" in reply.response
    assert reply.done_reason == "length"


def test_structured_output(client, server):
    class Cat(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        colour: Literal["black", "white"]

    asked = [{"role": "user", "content": "Name a black cat."}]
    reply = client.chat(server.model, asked, format=Cat.model_json_schema(), options={"temperature": 0})
    assert Cat.model_validate_json(reply.message.content)


def test_a_tool_is_called(client, server):
    def weather(city: str) -> str:
        """Tell the weather of a city.

        Args:
            city: its name
        """
        return f"It rains in {city}."

    asked = [{"role": "user", "content": "What is the weather in Paris? Call the tool."}]
    reply = client.chat(server.model, asked, tools=[weather], options={"temperature": 0})
    for call in reply.message.tool_calls or ():
        assert call.function.name == "weather"
        assert isinstance(call.function.arguments["city"], str)
    results = [{"role": "tool", "content": "It rains.", "tool_name": "weather"}]
    answer = client.chat(server.model, [*asked, reply.message, *results], options=SURELY)
    assert answer.message.content


def test_errors_are_the_clients_own(client, server):
    with pytest.raises(ollama.ResponseError, match="embeds none") as refused:
        client.embed(server.model, "a text")
    assert refused.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="images"):
        client.chat(server.model, [{"role": "user", "content": "What is it?", "images": [b"\x89PNG"]}])
    with pytest.raises(ollama.ResponseError, match="fill in the middle"):
        client.generate(server.model, "def one():", suffix="return x")
