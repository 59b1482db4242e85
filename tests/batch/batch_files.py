"""Files of requests, and what was answered."""

from __future__ import annotations

import json

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SMALL = {
    "memory": "4GiB",
    "budget": 64,
    "block": 32,
    "recent": 16,
    "threads": 1,
    "probe_tokens": 16,
    "prompt_lookup": "off",
}
# products of these weights are to the bit what they are alone, so requests that share steps say the same
MODEL = {"n_layer": 2, "n_ctx_train": 2048, "head_dim": 64, "quantization": "Q8_0"}


def words(n, word="word"):
    return " ".join(f"{word}{i % 97}" for i in range(n))


def chat(custom_id, *contents, system=None, **body):
    """A request: what the user and the assistant wrote in turn."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    messages = [*([{"role": "system", "content": system}] if system else []), *messages]
    body = {"messages": messages, "max_tokens": 8, "temperature": 1.5, "repeat_penalty": 1} | body
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def about_documents(n_documents, n_questions, n_words=60):
    """Requests that begin with documents, those of each document far from each other."""
    documents = [words(n_words, f"w{i}x") for i in range(n_documents)]
    return [
        chat(f"d{i}-q{j}", f"{document}\n\nQuestion {j}: {words(5, f'q{j}y')}?")
        for j in range(n_questions)
        for i, document in enumerate(documents)
    ]


def write(path, requests):
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return path


def rows(path):
    """The results by custom_id, without their times. Each must be there once."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for row in found:
        if row["response"] is not None:
            for name in ("created", "created_at", "completed_at"):
                row["response"]["body"].pop(name, None)
    by_id = {row["custom_id"]: row for row in found}
    assert len(by_id) == len(found)
    return by_id


def said(row):
    """The text of a reply."""
    body = row["response"]["body"]
    if "output" in body:
        return body["output"][-1]["content"][0]["text"]
    (choice,) = body["choices"]
    return choice["message"]["content"] if "message" in choice else choice["text"]
