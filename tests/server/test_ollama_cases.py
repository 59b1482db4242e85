"""Cases of Ollama's own tests (server/routes_generate_test.go), asked here: docs/results/server-tests.md."""

from __future__ import annotations

import pytest

CHAT, TEXT = "/api/chat", "/api/generate"
HELLO = {"role": "user", "content": "Hello!"}
MAGIC = {"role": "system", "content": "You can perform magic tricks."}
SHORT = {"stream": False, "options": {"num_predict": 3, "temperature": 0}}


def said(ask, path, **body):
    answer = ask(path, {"model": "any"} | SHORT | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def of(reply):
    return reply["message"]["content"] if "message" in reply else reply["response"]


# the request and the status, which are as Ollama has them
SAME = {
    "chat: think set to false": (CHAT, {"messages": [HELLO], "think": False}, 200),
    "chat: messages": (CHAT, {"messages": [HELLO]}, 200),
    "chat: messages with system": (CHAT, {"messages": [MAGIC, HELLO]}, 200),
    "chat: interleaved system": (
        CHAT,
        {"messages": [HELLO, {"role": "assistant", "content": "I can help."}, MAGIC, HELLO]},
        200,
    ),
    "generate: missing capabilities suffix": (TEXT, {"prompt": "def add(", "suffix": "return c"}, 400),
    "generate: prompt": (TEXT, {"prompt": "Hello!"}, 200),
    "generate: prompt with system": (TEXT, {"prompt": "Hello!", "system": "Write jokes."}, 200),
    "generate: raw": (TEXT, {"prompt": "Help me write tests.", "raw": True}, 200),
    "generate: logprobs, negative": (TEXT, {"prompt": "Hi", "logprobs": True, "top_logprobs": -1}, 400),
    "generate: logprobs, too many": (TEXT, {"prompt": "Hi", "logprobs": True, "top_logprobs": 21}, 400),
    "chat: logprobs, negative": (CHAT, {"messages": [HELLO], "logprobs": True, "top_logprobs": -1}, 400),
    "chat: logprobs, too many": (CHAT, {"messages": [HELLO], "logprobs": True, "top_logprobs": 21}, 400),
}

# another answer than Ollama's, and words of it
OTHER = {
    "chat: missing body": (CHAT, "", 400, "cannot be read"),  # Ollama: "model is required"
    "chat: missing model": (CHAT, {}, 200, '"load"'),  # there is one model, so any name is taken, and none
    "generate: missing body": (TEXT, "", 400, "cannot be read"),  # Ollama: 404
    "generate: missing model": (TEXT, {}, 200, '"load"'),
    "generate: prompt with template": (TEXT, {"prompt": "Hi", "template": "{{.Prompt}}"}, 400, "template"),
    "generate: context": (TEXT, {"prompt": "Hi", "context": [1, 2]}, 400, "/api/chat"),
    "generate: images": (TEXT, {"prompt": "Hi", "images": ["aGk="]}, 400, "images"),
    "generate: unload": (TEXT, {"prompt": "", "keep_alive": 0}, 400, "keep_alive"),
}


@pytest.mark.parametrize("case", SAME)
def test_answered_as_ollama_does(ask, case):
    path, body, status = SAME[case]
    answer = ask(path, {"model": "any"} | SHORT | body)
    assert answer.status_code == status, answer.text
    found = answer.json()
    if status != 200:
        assert found["error"]
        return
    assert found["done"]
    assert min(found["prompt_eval_count"], found["prompt_eval_duration"], found["eval_duration"]) > 0
    assert found["total_duration"] > 0
    assert found["eval_count"] == 3 or found["done_reason"] == "stop"


@pytest.mark.parametrize("case", OTHER)
def test_answered_otherwise(ask, case):
    path, body, status, words = OTHER[case]
    answer = ask(path, body)
    assert answer.status_code == status, answer.text
    assert words in answer.text


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_request_without_text_loads_the_model(ask, path):
    found = ask(path, {"model": "any"}).json()
    assert (found["done"], found["done_reason"]) == (True, "load")


@pytest.mark.usefixtures("talkative")
def test_system_messages_are_read(ask):
    plain, magic = (said(ask, CHAT, messages=messages) for messages in ([HELLO], [MAGIC, HELLO]))
    assert of(said(ask, TEXT, prompt="Hello!")) == of(plain)
    assert of(said(ask, TEXT, prompt="Hello!", system=MAGIC["content"])) == of(magic)
    assert magic["prompt_eval_count"] > plain["prompt_eval_count"]


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": [HELLO]}), (TEXT, {"prompt": "Hi"})])
def test_log_probabilities_have_bytes(ask, path, body):
    for token in said(ask, path, **body, logprobs=True, top_logprobs=2)["logprobs"]:
        assert bytes(token["bytes"]).decode(errors="replace") == token["token"]
        assert len(token["top_logprobs"]) == 2
