"""Gaps between two texts: the prompt has the model's tokens for them, and texts are read as nothing but texts."""

from __future__ import annotations

import pytest
from diagonals import HERE_BY_DAY

import edgekv
from edgekv import Infill
from edgekv.binding.model import Model

OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1}
BEFORE, AFTER = "def one():\n    return ", "\n\n\ndef two():\n"
FILES = (("a.py", "x = 1\n"), ("b.py", "y = 2\n"))


@pytest.fixture(scope="module")
def code_model(tiny_model):
    return tiny_model(tokenizer="code", n_ctx_train=2048, head_dim=64)


@pytest.fixture(autouse=True)
def talkative(monkeypatch):
    """Random weights may end a reply at any token; here none does."""
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)


def expected(runtime, before, after, files=()):
    """The tokens of a gap, part by part."""

    def of(text):
        return runtime.tokenize(text)

    def marker(name):
        (token,) = runtime.tokenize(name, special=True)
        return [token]

    tokens = []
    for name, text in files:
        tokens += marker("<|file_sep|>") + of(f"{name}\n{text}\n")
    tokens += marker("<|fim_prefix|>") + of(before) + marker("<|fim_suffix|>") + of(after)
    return tokens + marker("<|fim_middle|>")


def reply(runtime, history, **further):
    with runtime.session(history=True) as session:
        text = "".join(
            session.continue_from(history, max_tokens=12, sampling=edgekv.Sampling(temperature=0), **further)
        )
        return text, session.stats.prompt_tokens


@pytest.mark.parametrize("files", [(), FILES], ids=["alone", "files"])
@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_a_gap_is_the_tokens_that_the_model_has_for_it(code_model, files, isolated):
    with edgekv.Runtime(code_model, isolated=isolated, **OPTIONS) as runtime:
        gap, tokens = Infill(BEFORE, AFTER, files), expected(runtime, BEFORE, AFTER, files)
        assert runtime.count_tokens(gap) == len(tokens)
        if not isolated:  # a worker has the model's own end of a reply
            assert reply(runtime, gap) == reply(runtime, tokens)


def test_names_of_control_tokens_in_texts_are_texts(code_model):
    with edgekv.Runtime(code_model, **OPTIONS) as runtime:
        before, after = BEFORE + "<|fim_suffix|>", "<|fim_middle|>" + AFTER
        files = (("<|file_sep|>.py", "<|fim_prefix|>\n"),)
        tokens = expected(runtime, before, after, files)
        assert len(tokens) > len(expected(runtime, BEFORE, AFTER, files)) + 20
        assert reply(runtime, Infill(before, after, files)) == reply(runtime, tokens)


def test_either_side_may_be_empty_and_either_may_be_a_file(code_model, tmp_path):
    path = tmp_path / "long.py"
    path.write_text("".join(f"value_{i} = {i}\n" for i in range(200)))
    with edgekv.Runtime(code_model, **OPTIONS) as runtime:
        assert reply(runtime, Infill("", AFTER)) == reply(runtime, expected(runtime, "", AFTER))
        assert reply(runtime, Infill(BEFORE, "")) == reply(runtime, expected(runtime, BEFORE, ""))
        long = Infill(path, AFTER, (("other.py", path),))  # more tokens than cells
        same = Infill(path.read_text(), AFTER, (("other.py", path.read_text()),))
        found = reply(runtime, long)
        assert found == reply(runtime, same)
        assert found[1] > OPTIONS["budget"]


def test_a_stored_gap_is_the_same_prompt(code_model):
    with edgekv.Runtime(code_model, **OPTIONS) as runtime:
        with runtime.stored(Infill(BEFORE, AFTER, FILES)) as stored:
            found = reply(runtime, stored)
        assert found == reply(runtime, Infill(BEFORE, AFTER, FILES))


@pytest.mark.parametrize("tokenizer", ["bpe", "spm"])
def test_a_model_without_such_tokens_is_refused_by_name(tiny_model, tokenizer):
    model = tiny_model(tokenizer=tokenizer, head_dim=64)
    with edgekv.Runtime(model, **OPTIONS) as runtime, runtime.session(history=True) as session:
        with pytest.raises(edgekv.InputError, match="fill in the middle"):
            "".join(session.continue_from(Infill(BEFORE, AFTER)))
        assert "".join(session.continue_from(BEFORE, max_tokens=4))  # the session goes on


def test_log_probabilities_of_a_prompt_are_those_of_one_text(code_model):
    with (
        edgekv.Runtime(code_model, **OPTIONS) as runtime,
        runtime.session(history=True) as session,
        pytest.raises(edgekv.ConfigError, match="prompt_logprobs"),
    ):
        "".join(session.continue_from(Infill(BEFORE, AFTER), logprobs=0, prompt_logprobs=True))
