"""The `openai` package against a server."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal

import pytest
from children import LIMIT_S
from imported_later import imported_later

pydantic = pytest.importorskip("pydantic")
openai = imported_later("openai")

CEILING = 256 << 20
PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"
DOG = {"role": "user", "content": "And what is my dog called?"}
HELLO = [{"role": "user", "content": PETS}]
SURELY = {"temperature": 0, "max_tokens": 40}
SENTENCE = SURELY | {"stop": ["."]}  # it ends on every machine, however sums round there


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(server):
    return server.model


def test_models(client, model):
    assert [it.id for it in client.models.list()] == [model]
    assert client.models.retrieve(model).owned_by == "edgekv"


def test_chat(client, model):
    reply = client.chat.completions.create(model=model, messages=HELLO, **SENTENCE)
    assert "Mia" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.edgekv["peak_bytes"] < reply.edgekv["ceiling_bytes"] == CEILING


def test_chat_in_pieces(client, model):
    with client.chat.completions.create(
        model=model, messages=HELLO, stream=True, stream_options={"include_usage": True}, **SENTENCE
    ) as stream:
        *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "Mia" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens > 1
    assert last.edgekv["budget"] > 0


def test_a_chat_that_goes_on_is_not_read_again(client, model):
    first = client.chat.completions.create(model=model, messages=HELLO, **SURELY)
    messages = [*HELLO, first.choices[0].message, DOG]
    second = client.chat.completions.create(model=model, messages=messages, **SURELY)
    assert second.usage.prompt_tokens_details.cached_tokens > second.usage.prompt_tokens / 2
    assert "Rex" in second.choices[0].message.content


def test_responses(client, model):
    response = client.responses.create(model=model, input=PETS, instructions="Be brief.", temperature=0)
    assert (response.status, response.error) == ("completed", None)
    assert "Mia" in response.output_text
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens

    items = [*HELLO, *response.output, DOG]
    second = client.responses.create(model=model, input=items, instructions="Be brief.", temperature=0)
    assert "Rex" in second.output_text
    assert second.usage.input_tokens_details.cached_tokens > 0


def test_responses_in_pieces(client, model):
    with client.responses.stream(model=model, input=HELLO, temperature=0) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        whole = stream.get_final_response()
    assert said == whole.output_text
    assert "Mia" in said
    assert whole.edgekv["peak_bytes"] < CEILING


def test_a_response_is_parsed(client, model):
    class Cat(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        colour: Literal["black", "white"]

    response = client.responses.parse(model=model, input="Name a black cat.", text_format=Cat, temperature=0)
    assert isinstance(response.output_parsed, Cat)


def test_a_response_that_is_cut(client, model):
    response = client.responses.create(model=model, input="Count to a hundred.", max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.output_tokens == 3


def test_a_wrong_key(server, model):
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.chat.completions.create(model=model, messages=HELLO)
    assert refused.value.code == "invalid_api_key"


def test_a_wrong_name(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("another")
    assert refused.value.code == "model_not_found"


def test_wrong_values(client, model):
    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        client.chat.completions.create(model=model, messages=HELLO, temperature=200)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="send the whole conversation as input") as refused:
        client.responses.create(model=model, input="And of Italy?", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"


def test_too_long_for_those_who_want_no_eviction(client, model, long_text):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=model, input=3 * long_text, truncation="disabled")
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("server", ["here"], indirect=True)
def test_a_queue_that_is_full(client, model, long_text):
    """A reply without an end goes on until two of five others wait and three were refused."""
    endless = {"max_tokens": 1 << 20, "extra_body": {"ignore_eos": True}}
    reading, short = ([{"role": "user", "content": text}] for text in (long_text, "Hi"))
    refused, answered, full = [], [], threading.Semaphore(0)

    def ask():
        try:
            client.chat.completions.create(model=model, messages=short, max_tokens=1)
            answered.append(1)
        except openai.RateLimitError as error:
            refused.append(error)
            full.release()

    with client.chat.completions.create(model=model, messages=reading, stream=True, **endless):
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        assert all(full.acquire(timeout=LIMIT_S) for _ in range(3))
    for thread in threads:
        thread.join()
    assert len(refused) + len(answered) == 5
    assert answered
    assert refused[0].code == "rate_limit_exceeded"
    assert int(refused[0].response.headers["retry-after"]) > 0


def test_two_at_once(server, model):
    async def ask(client, question):
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], stream=True, **SURELY
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def both():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
            return await asyncio.gather(
                ask(client, PETS), ask(client, "What is the capital city of France? Answer in one word.")
            )

    cat, city = asyncio.run(both())
    assert "Mia" in cat
    assert "Paris" in city
