"""Bodies that are nearly right: whatever is wrong with them, they have an answer, and no failure of the server."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter

import httpx
import pytest
from asgi import JSON

N_MUTATIONS = 60
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
TALK = [
    {"role": "user", "content": "One"},
    {"role": "assistant", "content": "Two"},
    {"role": "user", "content": [{"type": "text", "text": "Three"}]},
]
DRAWN = {
    "model": "any",
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 1,
    "stream": False,
    "edgekv": {"on_overflow": "evict"},
}

BODIES = {
    "/v1/chat/completions": {"messages": TALK, "max_tokens": 2, "stop": ["x"], "n": 1, "logprobs": True}
    | {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "tool_choice": "none"},
    "/v1/completions": {"prompt": "One", "max_tokens": 2, "stop": "x", "echo": False},
    "/v1/responses": {"max_output_tokens": 2, "instructions": "Briefly.", "truncation": "auto", "include": ["x"]}
    | {"input": [*TALK[:2], {"role": "user", "content": [{"type": "input_text", "text": "Three"}]}]}
    | {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}, "metadata": {"a": "b"}},
    "/v1/messages": {"messages": TALK, "max_tokens": 2, "system": [{"type": "text", "text": "Briefly."}], "top_k": 3}
    | {"stop_sequences": ["x"], "thinking": {"type": "adaptive"}, "tool_choice": {"type": "none"}}
    | {"tools": [{"name": "f", "input_schema": SCHEMA}]},
    "/api/chat": {"messages": TALK[:2], "options": {"num_predict": 2, "num_ctx": 5, "stop": ["x"]}, "format": SCHEMA}
    | {"tools": [], "keep_alive": "5m", "think": False, "logprobs": True, "truncate": True},
    "/api/generate": {"prompt": "One", "system": "Briefly.", "raw": False, "options": {"num_predict": 2, "seed": 1}},
    "/apply-template": {"messages": TALK, "tools": [{"type": "function", "function": {"name": "f"}}]},
    "/v1/messages/count_tokens": {"messages": TALK, "system": "Briefly."},
    "/v1/responses/input_tokens": {"input": TALK, "instructions": "Briefly."},
}
VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**200,
        0.5,
        -0.0,
        1e300,
        "",
        " ",
        "x",
        "\0",
        "\u2028",
        "none",
        "tool",
    ),
    *("text", "assistant", "<|im_end|>", "x" * 5000, "\ud800", [], [[]], [None], ["x"], [{}], {}, {"type": "text"}),
    *(
        {"role": "user"},
        {"role": "tool", "content": "x"},
        {"": ""},
        {"type": "tool_result", "content": [{"type": "x"}]},
    ),
]


def places(value, path=()):
    """Yield the path of every value in a body."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def mutated(body, rng):
    """A body with one to three things changed, taken out, doubled, wrapped or put elsewhere."""
    body = {"body": copy.deepcopy(body)}
    for _ in range(rng.randint(1, 3)):
        *path, key = rng.choice([path for path in places(body) if path])
        parent = body
        for step in path:
            parent = parent[step]
        what = rng.choice(("change", "change", "take out", "double", "wrap", "deepen", "move"))
        if what == "take out" and path:
            del parent[key]
        elif what == "double" and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif what == "wrap":
            parent[key] = rng.choice(([parent[key]], {"type": parent[key]}, {"content": parent[key]}))
        elif what == "deepen":
            for _ in range(rng.choice((3, 90, 300))):
                parent[key] = [parent[key]]
        else:
            other = rng.choice(VALUES) if what == "change" else parent[rng.choice(list(places(parent))[1:])[0]]
            parent[key] = copy.deepcopy(other)
    return json.dumps(body["body"])


@pytest.fixture(scope="module")
def server(open_server):
    with open_server(request_s=60) as application:
        yield application


@pytest.mark.parametrize("path", BODIES)
def test_nothing_that_is_wrong_with_a_body_is_a_failure_of_the_server(server, path):
    rng = random.Random(path)
    body = BODIES[path] if path.endswith(("tokens", "template")) else DRAWN | BODIES[path]
    bodies = [json.dumps(body), *(mutated(body, rng) for _ in range(N_MUTATIONS))]

    async def answered():
        transport = httpx.ASGITransport(server, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=100) as client:
            return [await client.post(path, content=body.encode(), headers=JSON) for body in bodies]

    answers = asyncio.run(answered())
    assert answers[0].status_code == 200, answers[0].text
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.status_code in (200, 400, 413), (body[:2000], answer.status_code, answer.text)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert len(error if path.startswith("/api/") else error["message"]) > 10
    found = Counter(answer.status_code for answer in answers)
    assert found[200] > 2
    assert found[400] > 12
