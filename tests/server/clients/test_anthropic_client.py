"""The `anthropic` package against a server."""

from __future__ import annotations

import pytest
from imported_later import imported_later

anthropic = imported_later("anthropic")

CEILING = 256 << 20
PETS = {"role": "user", "content": "My cat is called Mia and my dog is called Rex. What is my cat called?"}
DOG = {"role": "user", "content": "And what is my dog called?"}
SURELY = {"max_tokens": 40, "extra_body": {"temperature": 0}}
TO_ITS_END = SURELY | {"max_tokens": 600}  # how long a reply is depends on how sums round on a machine


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(server):
    return server.model


def test_messages(client, model):
    message = client.messages.create(model=model, system="Be brief.", messages=[PETS], **TO_ITS_END)
    assert (message.role, message.stop_reason) == ("assistant", "end_turn")
    assert "Mia" in message.content[0].text
    assert message.edgekv["peak_bytes"] < message.edgekv["ceiling_bytes"] == CEILING

    said = {"role": "assistant", "content": message.content}
    second = client.messages.create(model=model, system="Be brief.", messages=[PETS, said, DOG], **SURELY)
    assert "Rex" in second.content[0].text
    assert second.usage.cache_read_input_tokens > second.usage.input_tokens > 0


def test_messages_in_pieces(client, model):
    with client.messages.stream(model=model, messages=[PETS], **TO_ITS_END) as stream:
        said = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert "Mia" in said
    assert [block.text for block in message.content] == [said]
    assert (message.stop_reason, message.model) == ("end_turn", model)
    assert message.usage.output_tokens > 1


def test_a_stop_sequence(client, model):
    message = client.messages.create(model=model, messages=[PETS], stop_sequences=["Mia", "cat"], **SURELY)
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence in ("Mia", "cat")
    assert "Mia" not in message.content[0].text


def test_a_message_that_is_cut(client, model):
    message = client.messages.create(model=model, messages=[PETS], **SURELY | {"max_tokens": 2})
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 2)


def test_a_tool_is_called_and_its_result_is_read(client, model):
    schema = {"type": "object", "properties": {"pet": {"enum": ["cat", "dog"]}}, "required": ["pet"]}
    tool = {"name": "call", "description": "Calls a pet.", "input_schema": schema | {"additionalProperties": False}}
    choice = {"type": "tool", "name": "call"}
    with client.messages.stream(model=model, messages=[PETS], tools=[tool], tool_choice=choice, **SURELY) as stream:
        message = stream.get_final_message()
    (call,) = message.content
    assert (message.stop_reason, call.name) == ("tool_use", "call")
    assert call.input["pet"] in ("cat", "dog")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It comes."}
    messages = [PETS, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    after = client.messages.create(model=model, messages=messages, tools=[tool], **SURELY)
    assert after.usage.cache_read_input_tokens > message.usage.input_tokens


def test_tokens_are_counted(client, model):
    counted = client.messages.count_tokens(model=model, system="Be brief.", messages=[PETS])
    usage = client.messages.create(model=model, system="Be brief.", messages=[PETS], **SURELY).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_wrong_key(server, model):
    with (
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        client.messages.create(model=model, messages=[PETS], **SURELY)
    assert refused.value.body["error"]["type"] == "authentication_error"


def test_wrong_values(client, model):
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match="this server reads blocks of type 'text'") as refused:
        client.messages.create(model=model, messages=[{"role": "user", "content": [image]}], **SURELY)
    assert refused.value.body["error"]["type"] == "invalid_request_error"


def test_an_address_that_is_none(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve("msgbatch_1")
