"""Models, health and properties that a server reports."""

from __future__ import annotations

import pytest

import edgekv
from edgekv.api.reply_request import Usage
from edgekv.server.metrics import Metrics


def test_replies_are_counted_by_name():
    metrics = Metrics()
    for first_s in (0.5, 1.0):
        usage = Usage(
            10, 4, 7, 1, seen=20, kept=15, evicted=5, evictions=2, peak_bytes=99, ceiling_bytes=100, budget=64
        )
        metrics.count_reply(usage, first_s)
    told = metrics.text({"queue": 3}).decode().splitlines()
    totals = {"prompt_tokens": 20, "cached_tokens": 8, "completion_tokens": 14, "evictions": 4}
    expected = [f"edgekv_{name}_total {n:.1f}" for name, n in totals.items()]
    expected += ["edgekv_peak_bytes 99.0", "edgekv_queue 3.0", "edgekv_first_token_seconds_sum 1.5"]
    assert {*expected} <= {*told}


def test_archives_are_counted():
    metrics = Metrics()
    figures = {"seen": 20, "kept": 15, "evicted": 5, "evictions": 2, "peak_bytes": 9, "ceiling_bytes": 9, "budget": 64}
    recalled = {"archived": 5, "recalls": 2, "recalled_cells": 32, "recall_s": 0.5, "archived_bytes": 1000}
    for failed in (False, True):
        metrics.count_reply(Usage(10, 4, 7, 1, **figures, **recalled, archive_failed=failed), 1.0)
    told = metrics.text({}).decode().splitlines()
    totals = {"recalls": 4, "recalled_cells": 64, "recall_seconds": 1, "archived_bytes": 2000, "archive_failures": 1}
    assert {*(f"edgekv_{name}_total {n:.1f}" for name, n in totals.items()), "edgekv_archived_tokens 5.0"} <= {*told}


def test_models(ask):
    (model,) = ask("/v1/models").json()["data"]
    assert model["object"] == "model"
    assert ask(f"/v1/models/{model['id']}").json() == model
    assert ask("/v1/models/another").json()["error"]["code"] == "model_not_found"
    assert model["context_length"] == model["max_model_len"] == model["meta"]["n_ctx_train"] == 2048
    assert model["capabilities"] == ["completion", "chat", "tools", "json_schema"]


HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": HELLO, "max_tokens": 1}),
        ("/completions", {"prompt": "Hello", "max_tokens": 1}),
        ("/responses", {"input": "Hello", "max_output_tokens": 1}),
        ("/messages", {"messages": HELLO, "max_tokens": 1}),
        ("/messages/count_tokens", {"messages": HELLO}),
        ("/models", None),
    ],
)
def test_addresses_without_a_version_are_answered(ask, path, body):
    assert ask(path, body).status_code == 200
    refused = ask(path, {"messages": 5}, method="PUT").json()
    assert (refused["error"]["type"], "type" in refused) == ("invalid_request_error", "messages" in path)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/embeddings", "embeds none"),
        ("/rerank", "ranks none"),
        ("/slots", "/metrics how many are busy"),
        ("/v2/nothing", "the addresses are /v1/chat/completions, "),
    ],
)
def test_other_addresses_say_what_there_is_instead(ask, path, told):
    refused = ask(path, {})
    assert refused.status_code == 404
    assert path in refused.json()["error"]["message"]
    assert told in refused.json()["error"]["message"]


def test_a_method_that_is_not_answered_names_the_other(ask):
    refused = ask("/v1/chat/completions")
    assert (refused.status_code, refused.json()["error"]["message"][-13:]) == (405, "ask it with POST"[-13:])


def test_half_a_character_is_told_in_plain_words(ask):
    refused = ask("/v1/completions", '{"prompt": "a\\ud800b"}')
    assert refused.status_code == 400
    assert "half of a character" in refused.json()["error"]["message"]


def test_tokens_with_their_texts(ask):
    text = "The capital \u5abd \U0001f917<|im_end|>"
    plain = ask("/tokenize", {"content": text, "parse_special": True}).json()["tokens"]
    found = ask("/tokenize", {"content": text, "parse_special": True, "with_pieces": True}).json()["tokens"]
    assert [token["id"] for token in found] == plain
    pieces = [token["piece"] for token in found]
    assert b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces) == text.encode()
    assert {type(piece) for piece in pieces} == {str, list}


def test_addresses_of_vllm(ask, server):
    assert ask("/ping").status_code == 200
    assert ask("/version").json() == {"version": edgekv.__version__}
    assert ask("/load").json() == {"server_load": 0}
    found = ask("/tokenize", {"content": "The capital is"}).json()
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == server.state.pool.runtime.plan.n_ctx_train


def test_a_tokenizer_as_lm_eval_asks_for_it(ask):
    assert ask("/tokenizer_info").json()["model_max_length"] > 0
    asked = {"prompt": "The capital is", "add_special_tokens": False}
    tokens = ask("/tokenize", asked).json()["tokens"]
    assert tokens == ask("/tokenize", {"content": "The capital is"}).json()["tokens"]
    assert ask("/detokenize", {"tokens": tokens}).json()["prompt"] == "The capital is"


def test_timings(ask):
    answer = ask("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3}).json()
    timings, usage = answer["timings"], answer["usage"]
    n_read = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    assert (timings["prompt_n"], timings["predicted_n"]) == (n_read, usage["completion_tokens"])
    assert timings["prompt_ms"] > 0
    assert timings["prompt_per_second"] == pytest.approx(1e3 * n_read / timings["prompt_ms"])


def test_the_text_that_a_conversation_is_read_as(ask):
    """The text is as long as what is read, and content in it is as it was sent."""
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say <|im_end|>"}]
    tools = [{"type": "function", "function": {"name": "weather", "description": "Tells it."}}]
    prompt = ask("/apply-template", {"messages": history, "tools": tools}).json()["prompt"]
    assert "Say <|im_end|>" in prompt
    assert "Tells it." in prompt
    plain = ask("/apply-template", {"messages": HELLO}).json()["prompt"]
    tokens = ask("/tokenize", {"content": plain, "parse_special": True}).json()["tokens"]
    counted = ask("/v1/messages/count_tokens", {"messages": HELLO}).json()["input_tokens"]
    assert counted - 1 <= len(tokens) <= counted  # a first token may come before the text
    for path, talk in (("/chat/completions", {"messages": HELLO}), ("/v1/responses", {"input": HELLO})):
        assert ask(f"{path}/input_tokens", talk | {"model": "any"}).json()["input_tokens"] == counted
    refused = ask("/apply-template", {"messages": [{"role": "user"}]})
    assert refused.json()["error"]["param"] == "messages.0.content"


def test_health_and_props(ask, server):
    assert ask("/health").json() == {"status": "ok"}
    props = ask("/props")
    assert props.json()["budget"] == 64
    assert props.json()["ceiling_bytes"] == 4 << 30
    assert props.json()["policy"] == "keydiff(rope=off)"
    assert props.json()["total_slots"] == 1
    assert props.json()["default_generation_settings"]["params"]["n_predict"] == 1024
    assert str(server.state.pool.runtime.plan.model.parent) not in props.text
