"""The `litellm` package against a server, by each of the three APIs."""

from __future__ import annotations

import pytest
from imported_later import imported_later

litellm = imported_later("litellm")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.parametrize("server", ["here"], indirect=True),
    pytest.mark.filterwarnings("ignore"),  # modules of its own warn
    pytest.mark.usefixtures("forgotten"),
]

PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"
SURELY = {"messages": [{"role": "user", "content": PETS}], "temperature": 0, "max_tokens": 40, "num_retries": 0}
APIS = {"openai": "/v1", "anthropic": "", "ollama_chat": ""}


@pytest.fixture(params=APIS)
def about(server, request, monkeypatch):
    """Arguments that name the server, and the API to ask it by."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # importing it asks the network for prices otherwise
    return {
        "model": f"{request.param}/{server.model}",
        "api_base": server.url + APIS[request.param],
        "api_key": server.key,
    }


def test_a_reply(about):
    reply = litellm.completion(**about, **SURELY | {"max_tokens": 600})  # until it ends
    assert "Mia" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens > reply.usage.completion_tokens > 1


def test_a_reply_in_pieces(about):
    chunks = list(litellm.completion(stream=True, **about, **SURELY))
    assert len(chunks) > 2
    assert "Mia" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_an_error_is_of_the_clients_own_kind(about):
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**(about | {"api_key": "another"}), **SURELY)
