"""The `openai-agents` package against a server, in an environment of its own: replies and tools, whole and streamed."""

from __future__ import annotations

import json
import subprocess

import pytest
from children import LIMIT_S
from packages import from_pypi

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("server", ["here"], indirect=True)]

PROGRAM = '''
import asyncio, json, sys
from typing import Literal
import agents, openai

url, key, name, kind, pets = sys.argv[1:]
agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
made = agents.OpenAIResponsesModel if kind == "responses" else agents.OpenAIChatCompletionsModel
model = made(model=name, openai_client=client)
asked = []

@agents.function_tool
def weather(city: Literal["Oslo"]) -> str:
    """Tells the weather."""
    asked.append(city)
    return f"It rains in {city}."

SURELY = {"temperature": 0, "max_tokens": 60}
plain = agents.Agent("plain", model=model, model_settings=agents.ModelSettings(**SURELY))
caller = agents.Agent(
    "caller", model=model, tools=[weather], tool_use_behavior="stop_on_first_tool",
    model_settings=agents.ModelSettings(tool_choice="required", **SURELY),
)

async def streamed(agent, text):
    reply = agents.Runner.run_streamed(agent, text)
    n_events = sum([1 async for _ in reply.stream_events()])
    return reply.final_output, n_events

async def main():
    whole = [(await agents.Runner.run(agent, pets)).final_output for agent in (plain, caller)]
    pieces = [await streamed(agent, pets) for agent in (plain, caller)]
    await client.close()
    return {"whole": whole, "streamed": [it[0] for it in pieces], "n_events": [it[1] for it in pieces], "asked": asked}

print(json.dumps(asyncio.run(main())))
'''
PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    with from_pypi(tmp_path_factory.mktemp("agents"), "openai-agents") as programs:
        yield programs / "python"


@pytest.mark.parametrize("kind", ["chat_completions", "responses"])
def test_replies_and_tools_whole_and_streamed(server, python, kind):
    command = [python, "-c", PROGRAM, server.url, server.key, server.model, kind, PETS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for said, result in (found["whole"], found["streamed"]):
        assert "Mia" in said
        assert result == "It rains in Oslo."
    assert min(found["n_events"]) > 2
    assert set(found["asked"]) == {"Oslo"}
