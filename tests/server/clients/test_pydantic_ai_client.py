"""The `pydantic-ai` package against a server: replies, objects, tools."""

from __future__ import annotations

from typing import Literal

import httpx
import pytest
from imported_later import imported_later

pydantic = pytest.importorskip("pydantic")
pydantic_ai = imported_later("pydantic_ai")
openai = imported_later("openai")
openai_models = imported_later("pydantic_ai.models.openai")
openai_providers = imported_later("pydantic_ai.providers.openai")

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("server", ["here"], indirect=True)]

PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"
SURELY = {"temperature": 0, "max_tokens": 60}


@pytest.fixture
def model(server, forgotten):
    # the package ends its loop without closing what the loop has open
    connections = openai.DefaultAsyncHttpxClient(limits=httpx.Limits(max_keepalive_connections=0))
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, http_client=connections)
    provider = openai_providers.OpenAIProvider(openai_client=client)
    return openai_models.OpenAIChatModel(server.model, provider=provider)


def test_a_reply_and_the_next_one(model):
    agent = pydantic_ai.Agent(model, system_prompt="Be brief.", model_settings=SURELY)
    first = agent.run_sync(PETS)
    assert "Mia" in first.output
    second = agent.run_sync("And what is my dog called?", message_history=first.all_messages())
    assert "Rex" in second.output
    assert second.usage.input_tokens > first.usage.input_tokens


def test_a_reply_in_pieces(model):
    reply = pydantic_ai.Agent(model, model_settings=SURELY).run_stream_sync(PETS)
    *_, text = reply.stream_text()
    assert "Mia" in text


def test_an_object(model):
    class Cat(pydantic.BaseModel):
        """A cat."""

        name: str = pydantic.Field(max_length=12)
        colour: Literal["black", "white"]

    for output in (pydantic_ai.NativeOutput(Cat), Cat):  # by a schema, and by a tool that must be called
        agent = pydantic_ai.Agent(model, output_type=output, model_settings=SURELY)
        assert isinstance(agent.run_sync("Name a black cat.").output, Cat)
