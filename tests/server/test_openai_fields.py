"""Replies under conditions, asked for by OpenAI's own client: JSON by a schema, calls of tools, log probabilities."""

from __future__ import annotations

import json
from enum import Enum
from typing import Literal

import httpx
import jsonschema
import pytest
from asgi import said
from imported_later import imported_later
from pydantic import BaseModel, ConfigDict, Field

from edgekv.api.json_stream import json_parts
from edgekv.api.openai_fields import chat_logprobs, text_logprobs
from edgekv.generation.logprobs import Token, TokenLogprob, packed
from edgekv.server.spill import LONG_CHARS

openai = imported_later("openai")

PATH = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "Who is it?"}]
DRAWN = {"temperature": 2, "seed": 5, "max_tokens": 900}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Bounded(BaseModel):
    """Values of random weights end: no further properties, whose names and texts may be of any length."""

    model_config = ConfigDict(extra="forbid")


class Address(Bounded):
    street: str = Field(max_length=8)
    number: int = Field(ge=1, le=99)


class Person(Bounded):
    name: str = Field(max_length=8)
    colours: list[Colour] = Field(max_length=2)
    address: Address


class Weather(Bounded):
    """Tells the weather."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=7)


@pytest.fixture
async def client(server):
    transport = httpx.ASGITransport(server)
    http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
    async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http) as client:
        yield client


@pytest.fixture
def anyio_backend():
    return "asyncio"


pytestmark = pytest.mark.anyio


def in_json(value):
    return json.loads(b"".join(json_parts(value)))


def asked(**further):
    return {"model": "any", "messages": ASKED, **DRAWN, "extra_body": {"min_p": 0}, **further}


async def test_a_model_of_pydantic_is_parsed(client):
    reply = await client.chat.completions.parse(**asked(response_format=Person))
    (choice,) = reply.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)
    assert 1 <= choice.message.parsed.address.number <= 99


async def test_a_stream_of_json(client):
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}
    chunks = [
        chunk async for chunk in await client.chat.completions.create(**asked(response_format=schema, stream=True))
    ]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    Person.model_validate_json(text)
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_any_json_object(client):
    reply = await client.chat.completions.create(**asked(response_format={"type": "json_object"}))
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content), dict)
    assert reply.choices[0].message.content.startswith("{")


async def test_a_tool_is_called_and_its_result_is_read(client):
    tools = [openai.pydantic_function_tool(Weather)]
    one = {"tool_choice": "required", "parallel_tool_calls": False}  # one call, so that the length cuts none off
    reply = await client.chat.completions.parse(**asked(tools=tools, **one))
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls
    assert all(isinstance(call.function.parsed_arguments, Weather) for call in choice.message.tool_calls)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "It rains."} for call in choice.message.tool_calls]
    messages = [*ASKED, choice.message.model_dump(exclude_none=True), *results]
    after = await client.chat.completions.create(
        **asked(messages=messages, tools=tools, tool_choice="none", max_tokens=5)
    )
    assert after.choices[0].message.tool_calls is None
    assert after.usage.prompt_tokens_details.cached_tokens > reply.usage.prompt_tokens


def test_a_tool_whose_schema_no_grammar_expresses_is_called(ask):
    """Agents send the schemas that their libraries write."""
    tags = {"type": "array", "items": {"type": "string", "format": "uri-reference"}, "uniqueItems": True}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"tags": tags}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema | {"required": ["tags"]}}}
    answer = ask(PATH, {"messages": ASKED, "tools": [tool], "tool_choice": "required", "max_tokens": 8})
    assert answer.status_code == 200, answer.json()


async def test_a_call_in_a_stream(client):
    tools = [openai.pydantic_function_tool(Weather)]
    choice = {"type": "function", "function": {"name": "Weather"}}
    calls, reasons = [], []
    async for chunk in await client.chat.completions.create(**asked(tools=tools, tool_choice=choice, stream=True)):
        calls += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    (call,) = calls
    assert (call.index, call.type, call.function.name) == (0, "function", "Weather")
    assert call.id.startswith("call_")
    Weather.model_validate_json(call.function.arguments)
    assert reasons[-1] == "tool_calls"


async def test_log_probabilities(client):
    reply = await client.chat.completions.create(**asked(logprobs=True, top_logprobs=3, max_tokens=12))
    (choice,) = reply.choices
    content = choice.logprobs.content
    assert 0 < len(content) <= 12
    assert b"".join(bytes(token.bytes) for token in content).decode(errors="replace") == choice.message.content
    assert all(token.logprob < 0 and len(token.top_logprobs) == 3 for token in content)
    plain = await client.chat.completions.create(**asked(max_tokens=12))
    assert plain.choices[0].logprobs is None


async def test_log_probabilities_in_a_stream(client):
    whole = await client.chat.completions.create(**asked(logprobs=True, max_tokens=12))
    streamed = []
    async for chunk in await client.chat.completions.create(**asked(logprobs=True, max_tokens=12, stream=True)):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [token.bytes for token in streamed] == [token.bytes for token in whole.choices[0].logprobs.content]


def test_more_log_probabilities_than_there_is_room_for(ask):
    body = {"messages": ASKED, "logprobs": True, "top_logprobs": 20, "max_tokens": 2_000}
    answer = ask(PATH, body)
    assert answer.status_code == 400
    assert "2000 tokens with 20 alternatives" in answer.json()["error"]["message"]
    assert ask(PATH, body | {"max_tokens": 2}).status_code == 200


async def test_log_probabilities_of_a_text(client):
    reply = await client.completions.create(model="any", prompt="Once", logprobs=2, **DRAWN | {"max_tokens": 10})
    told = reply.choices[0].logprobs
    assert 0 < len(told.tokens) <= 10
    assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == len(told.top_logprobs)
    assert told.text_offset[0] == 0


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
         "invalid_schema", "not"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://x.org/y"}}}},
         "invalid_schema", "json_schema"),
        ({"tools": [{"type": "web_search"}]}, "invalid_value", "is no function"),
        ({"tool_choice": "required"}, "invalid_value", "needs tools"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "g"}, "invalid_value", "'g'"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "grammar": 'root ::= "a"'},
         "invalid_value", "without a grammar"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"messages": [{"role": "assistant"}]}, "missing_required_parameter", "content"),
        ({"stop": ["x"] * 17}, "invalid_value", "at most 16"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "missing_required_parameter",
         "messages.0.content.0.type: Field required messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "invalid_value",
         "messages.0.content.0.text: Input should be a valid string"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_value", "string messages.0.content"),
        ({"edgekv": {"focus": []}}, "invalid_value", "edgekv.focus: List should have at least 1 item"),
        ({"edgekv": {"focus": 5}}, "invalid_value", "input edgekv.focus"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused(ask, body, code, message):
    answer = ask(PATH, {"messages": ASKED} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, code), error
    assert message in f"{error['message']} {error['param']}"


def test_what_cannot_come_has_a_number_in_json():
    never = packed(Token(1, b"a", float("-inf"), (TokenLogprob(2, "é".encode(), float("-inf")),)))
    (token,) = in_json(chat_logprobs(never))["content"]
    assert (token["logprob"], token["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    assert in_json(text_logprobs(never + never, 3)) == {
        "tokens": ["a", "a"],
        "token_logprobs": [-9999.0, -9999.0],
        "top_logprobs": [{"é": -9999.0}, {"é": -9999.0}],
        "text_offset": [3, 4],
    }


def test_a_server_without_grammars_refuses_schemas_by_name(open_server, tmp_path):
    import asyncio

    from asgi import fetched

    with open_server(options={"grammars": False}) as application:
        body = {"messages": ASKED, "response_format": {"type": "json_object"}}
        answer = asyncio.run(fetched(application, PATH, body))
        assert answer.status_code == 400
        assert "grammars=True" in answer.json()["error"]["message"]
        assert asyncio.run(fetched(application, PATH, {"messages": ASKED, "max_tokens": 3})).status_code == 200


def test_events_of_a_stream_are_json(open_server):
    """In a server of its own: the rounding of rows that earlier requests left may change what is drawn."""
    import asyncio

    from asgi import fetched

    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}
    body = {"messages": ASKED, "stream": True, "response_format": schema, "min_p": 0, **DRAWN}
    with open_server() as application:
        *chunks, done = said(asyncio.run(fetched(application, PATH, body)))
    assert done == "[DONE]"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    jsonschema.validate(json.loads(text), Person.model_json_schema())


def test_long_results_of_tools_are_read(ask):
    """Long texts of a request lie in files, whoever wrote them."""
    calls = [{"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
    messages = [
        {"role": "system", "content": "s" * (LONG_CHARS + 1)},
        *ASKED,
        {"role": "assistant", "content": "a" * (LONG_CHARS + 1), "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "t" * (LONG_CHARS + 1)},
    ]
    tools = [{"type": "function", "function": {"name": "read"}}]
    answer = ask(PATH, {"messages": messages, "tools": tools, "tool_choice": "none", "max_tokens": 2})
    assert answer.status_code == 200, answer.text


ODD = {"type": "object", "properties": {"data": {"type": "object", "propertyNames": {"pattern": "^a"}}}}
ODD_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in (("browser_drop", ODD), ("weather", Weather.model_json_schema()))
]


async def test_a_relaxed_tool_is_told(client):
    """A record, as MCP servers send it, may have a word that no grammar expresses."""
    reply = await client.chat.completions.create(**asked(tools=ODD_TOOLS, max_tokens=5))
    assert reply.edgekv["relaxed_tools"] == {"browser_drop": ["propertyNames"]}
    stream = await client.chat.completions.create(**asked(tools=ODD_TOOLS, max_tokens=5, stream=True))
    (*_, last) = [chunk async for chunk in stream]
    assert last.edgekv == {"relaxed_tools": {"browser_drop": ["propertyNames"]}}
    reply = await client.chat.completions.create(**asked(tools=ODD_TOOLS[1:], max_tokens=5))
    assert "relaxed_tools" not in reply.edgekv
