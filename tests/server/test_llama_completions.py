"""llama.cpp's own completions: what its clients read of an answer, and gaps between two texts."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgi import fetched, said

TEXT, INFILL = "/completion", "/infill"
DRAWN = {"temperature": 0, "n_predict": 12, "repeat_penalty": 1}
GAP = {"input_prefix": "def one():\n    return ", "input_suffix": "\n\n\ndef two():\n"}
FILES = [{"filename": "a.py", "text": "x = 1\n"}, {"filename": "b.py", "text": "y = 2\n"}]

pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(scope="module")
def server(open_server):
    with open_server(tokenizer="code") as application:
        yield application


def reply(ask, path, **body):
    answer = ask(path, DRAWN | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(ask, path, **body):
    answer = ask(path, DRAWN | body | {"stream": True})
    assert answer.status_code == 200, answer.text
    return said(answer)


def test_an_answer_has_what_clients_of_llama_cpp_read(ask):
    found = reply(ask, TEXT, prompt="It is", stop=["never said"], seed=7, top_k=3)
    assert found["stop"] is True
    assert (found["stop_type"], found["stopping_word"], found["truncated"]) == ("limit", "", False)
    assert (found["tokens_predicted"], found["index"], found["tokens"]) == (12, 0, [])
    assert found["tokens_evaluated"] == found["timings"]["prompt_n"] + found["timings"]["cache_n"]
    assert found["tokens_cached"] >= found["tokens_evaluated"] + 11
    assert found["has_new_line"] == ("\n" in found["content"])
    settings = found["generation_settings"]
    assert [settings[name] for name in ("seed", "top_k", "n_predict", "stop", "temperature", "stream")] == [
        7,
        3,
        12,
        ["never said"],
        0,
        False,
    ]
    assert "completion_probabilities" not in found


def test_the_text_is_that_of_the_other_form(ask):
    other = ask("/v1/completions", {"prompt": "It is", "temperature": 0, "max_tokens": 12, "repeat_penalty": 1}).json()
    assert reply(ask, TEXT, prompt="It is")["content"] == other["choices"][0]["text"]


def test_a_stream_has_the_pieces_and_ends_with_the_figures(ask):
    whole = reply(ask, TEXT, prompt="It is", return_tokens=True, n_probs=2)
    *pieces, last = events(ask, TEXT, prompt="It is", return_tokens=True, n_probs=2)
    assert all(piece["stop"] is False for piece in pieces)
    assert last["stop"] is True
    assert (last["content"], last["tokens_predicted"]) == ("", 12)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    for name in ("tokens", "completion_probabilities"):
        assert [item for piece in pieces for item in piece[name]] == whole[name]


def test_tokens_and_their_alternatives(ask):
    found = reply(ask, TEXT, prompt="It is", return_tokens=True, n_probs=3)
    ids = found["tokens"]
    assert len(ids) == 12
    assert ask("/detokenize", {"tokens": ids}).json()["content"] == found["content"]
    for token, told in zip(ids, found["completion_probabilities"], strict=True):
        assert told["id"] == token
        assert told["logprob"] <= 0
        best = told["top_logprobs"]
        assert len(best) == 3
        assert best[0]["id"] == token  # temperature 0 takes the likeliest
        assert best == sorted(best, key=lambda other: -other["logprob"])


def test_a_word_that_ends_the_reply_is_named(ask):
    text = reply(ask, TEXT, prompt="It is")["content"]
    word = text[len(text) // 2 :][:3]
    found = reply(ask, TEXT, prompt="It is", stop=[word])
    assert (found["stop_type"], found["stopping_word"]) == ("word", word)
    assert found["content"] == text[: text.index(word)]


def test_several_prompts_have_a_list_of_answers(ask):
    alone = [reply(ask, TEXT, prompt=prompt)["content"] for prompt in ("It is", "She had", "In")]
    found = reply(ask, TEXT, prompt=["It is", "She had", "In"])
    assert [(answer["index"], answer["content"]) for answer in found] == [*enumerate(alone)]
    streamed = events(ask, TEXT, prompt=["It is", "She had", "In"])
    texts = ["".join(part["content"] for part in streamed if part["index"] == i) for i in range(3)]
    assert texts == alone
    ids = ask("/tokenize", {"content": "It is"}).json()["tokens"]
    assert reply(ask, TEXT, prompt=ids)["content"] == alone[0]


def test_fields_of_the_answer_can_be_chosen(ask):
    wanted = ["content", "timings/predicted_n", "generation_settings/n_predict", "no/such"]
    found = reply(ask, TEXT, prompt="It is", response_fields=wanted)
    assert set(found) == {"content", "timings/predicted_n", "generation_settings/n_predict"}
    assert (found["timings/predicted_n"], found["generation_settings/n_predict"]) == (12, 12)
    assert "timings" in ask("/completion", {"prompt": "It is", "n_predict": 1, "response_fields": []}).json()
    assert set(events(ask, TEXT, prompt="It is", response_fields=["stop"])[-1]) == {"stop"}


def test_a_reply_may_have_a_form(ask):
    found = reply(ask, TEXT, prompt="Say:", grammar='root ::= "yes"')
    assert (found["content"], found["stop_type"]) == ("yes", "eos")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    drawn = {"prompt": "Say:", "temperature": 2, "seed": 5, "n_predict": 80}
    for form in ({"json_schema": schema}, {"response_format": {"type": "json_object", "schema": schema}}):
        assert json.loads(reply(ask, TEXT, **drawn, **form)["content"])["a"] in (1, 2)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs"),
        (TEXT, {"prompt": "a", "samplers": ["top_k"]}, "samplers"),
        (TEXT, {"prompt": "a", "n_probs": 21}, "n_probs"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {}, "prompt"),
        (INFILL, GAP | {"mirostat": 2}, "mirostat"),
        (INFILL, {"input_prefix": "a"}, "input_suffix"),
        (INFILL, GAP | {"input_extra": [{}]}, "input_extra.0.text"),
        (INFILL, GAP | {"input_extra": [{"filename": 1, "text": "a"}]}, "input_extra.0.filename"),
        (INFILL, GAP | {"n": 2}, "n"),
        ("/v1/completions", {"prompt": [1, 2], "suffix": "b"}, "suffix"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(ask, path, body, param):
    answer = ask(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_gap_is_filled_alike_in_every_form(ask):
    found = reply(ask, INFILL, **GAP)
    prefix, suffix = GAP.values()
    moved = {"input_prefix": prefix[:9], "prompt": prefix[9:], "input_suffix": suffix}
    assert reply(ask, INFILL, **moved)["content"] == found["content"]
    body = {"prompt": prefix, "suffix": suffix, "temperature": 0, "max_tokens": 12, "repeat_penalty": 1}
    assert ask("/v1/completions", body).json()["choices"][0]["text"] == found["content"]
    options = {"temperature": 0, "num_predict": 12, "repeat_penalty": 1}
    ollama = {"prompt": prefix, "suffix": suffix, "options": options, "stream": False}
    assert ask("/api/generate", ollama).json()["response"] == found["content"]
    assert "".join(part["content"] for part in events(ask, INFILL, **GAP)) == found["content"]


def test_other_files_are_read_before_a_gap(ask):
    alone, among = reply(ask, INFILL, **GAP), reply(ask, INFILL, **GAP, input_extra=FILES)
    n_files = sum(len(ask("/tokenize", {"content": f"{f['filename']}\n{f['text']}\n"}).json()["tokens"]) for f in FILES)
    assert among["tokens_evaluated"] == alone["tokens_evaluated"] + n_files + len(FILES)


def test_a_text_before_a_gap_is_not_read_again_while_the_cursor_moves(open_server):
    """Without an archive, from which each request would begin at its own place."""

    def filled(typed):
        body = {"input_prefix": text + typed, "input_suffix": "\nprint(total)\n", "n_predict": 2}
        return reply(lambda *asked: asyncio.run(fetched(application, *asked)), INFILL, **body)

    text = "".join(f"number_{i} = {i}\n" for i in range(12)) + "total = "
    with open_server(options={"archive": "off"}, tokenizer="code") as application:
        answers = [filled(typed) for typed in ("", "sum", "sum(", "sum([")]
        known = [answer["timings"]["cache_n"] for answer in answers]
        assert known[2] == known[3] >= 64  # two blocks: the second request told that they are shared, and kept them
        assert filled("sum([")["content"] == answers[3]["content"]


def test_what_an_editor_sends_and_changes_nothing_is_told(ask):
    sent = {"samplers": ["top_k", "top_p", "infill"], "n_indent": 4, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000}
    found = reply(ask, INFILL, **GAP, **sent, cache_prompt=True, id_slot=0)
    assert found["content"] == reply(ask, INFILL, **GAP)["content"]
    assert found["edgekv"]["not_applied"] == ["samplers", "n_indent", "t_max_predict_ms", "t_max_prompt_ms"]


def test_a_long_gap_is_read_from_files_of_the_disk(ask):
    """Texts of more characters than a request may hold while it waits, and of more tokens than cells."""
    text = "".join(f"value_{i} = {i}\n" for i in range(1100))
    found = reply(ask, INFILL, input_prefix=text, input_suffix=GAP["input_suffix"], n_predict=2)
    assert found["edgekv"]["evicted"] > 0
    short = {"input_prefix": "a", "input_suffix": text, "input_extra": [{"filename": "b", "text": text}]}
    assert reply(ask, INFILL, **short, n_predict=2)["tokens_evaluated"] > 2 * found["tokens_evaluated"] - 200


def test_clients_are_told_that_gaps_can_be_filled(ask):
    (model,) = ask("/v1/models").json()["data"]
    assert "infill" in model["capabilities"]
    assert "insert" in ask("/api/show", {"model": model["id"]}).json()["capabilities"]


def test_a_gap_needs_a_model_that_fills_gaps(open_server):
    with open_server() as application:
        for path, body in (
            (INFILL, GAP),
            ("/v1/completions", {"prompt": "a", "suffix": "b"}),
            ("/api/generate", {"prompt": "a", "suffix": "b", "stream": False}),
        ):
            answer = asyncio.run(fetched(application, path, body))
            assert answer.status_code == 400
            assert "fill in the middle" in json.dumps(answer.json())
