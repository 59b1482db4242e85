"""The likelihood of right answers, against the same tokens fed by hand. Measuring it changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import edgekv
from edgekv.evals import answer_likelihood
from edgekv.evals.document import Question
from edgekv.evals.question_protocol import ask_all
from edgekv.evals.setting import Setting
from edgekv.evals.tokens import begin
from edgekv.models.header import Header
from edgekv.prompt.turns import Turns

QUESTIONS = (
    Question("What is blue?", ("sea", "a house"), max_tokens=4),
    Question("Who came?", ("nobody",), max_tokens=4),
)


@pytest.fixture
def setting(tiny_model):
    """Makes settings over a tiny model."""
    model = str(tiny_model(n_layer=2, n_ctx_train=2048))
    return lambda **fields: Setting(model=model, **{"budget": 64, "block": 32, "recent": 8} | fields)


def found(setting, text, nll=True):
    with setting.open(600, threads=1) as runtime:
        return ask_all(runtime, setting, text, QUESTIONS, nll=nll)


def loss_by_hand(runtime, given, token):
    """-ln p of a token after all those before it, which are read anew."""
    begin(runtime, len(given))
    runtime.block_loop.read(given, lambda _: True)
    logits = runtime.context.logits_array().astype(np.float64)
    return np.log(np.exp(logits - logits[token]).sum())


def test_it_is_that_of_the_same_tokens_fed_by_hand(setting, text):
    full = setting(policy="full")
    with full.open(600, threads=1) as runtime:
        answered = ask_all(runtime, full, text, QUESTIONS, nll=True)
        for question, each in zip(QUESTIONS, answered, strict=True):
            turns = Turns(runtime.model, None)
            given = [*turns.beginning([text.read_text()]).tokens()]
            turns.state = "open"
            given += turns.turn([question.text]).tokens()
            tokens = runtime.tokenize(question.right)
            losses = [loss_by_hand(runtime, [*given, *tokens[:i]], token) for i, token in enumerate(tokens)]
            assert each.nll == pytest.approx(sum(losses) / len(tokens), rel=2e-3)
            assert sum(losses) / len(tokens) != pytest.approx(sum(losses[1:]) / len(tokens), rel=0.05)


def test_several_answers_are_one_reply():
    assert QUESTIONS[0].right == "sea, a house"


CHATS = {
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}": "",
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>"
    "{% endif %}{% endfor %}": " ",
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}": "",
}


@pytest.mark.parametrize("tokenizer", ["bpe", "spm"])
@pytest.mark.parametrize(("template", "space"), CHATS.items(), ids=["plain", "space", "thoughts"])
def test_an_answer_begins_as_the_template_writes_one(tiny_model, monkeypatch, tokenizer, template, space):
    monkeypatch.setattr(Header, "chat_template", template)
    with edgekv.Runtime(tiny_model(tokenizer=tokenizer), memory="2GiB", budget=64) as runtime:
        tokens = answer_likelihood.answer_tokens(runtime.model, QUESTIONS[1])
        assert b"".join(map(runtime.model.piece, tokens)).decode() == f"{space}nobody"


@pytest.mark.parametrize(
    "fields", [{"policy": "full"}, {"focus": "off"}, {"focus": "What?"}, {"focus": "question"}, {"focus": "turn"}]
)
def test_replies_are_the_same_with_it(setting, text, fields):
    how = setting(**fields)
    plain, measured = found(how, text, nll=False), found(how, text)
    assert [each.reply for each in measured] == [each.reply for each in plain]
    assert all(each.nll is None for each in plain)
    assert all(each.nll > 0 for each in measured)


def test_each_question_meets_the_cells_as_if_it_were_the_first(setting, text):
    how = setting(focus="What?")
    with how.open(600, threads=1) as runtime:
        alone = [ask_all(runtime, how, text, [question], nll=True)[0] for question in QUESTIONS]
        assert ask_all(runtime, how, text, QUESTIONS, nll=True) == alone


def test_it_shows_what_was_evicted(setting, text):
    full, few = (found(setting(policy=policy), text) for policy in ("full", "keydiff"))
    assert all(a.nll != b.nll for a, b in zip(full, few, strict=True))


@pytest.mark.parametrize(
    "fields",
    [
        {"policy": "snapkv+ada", "kv_type": "q8_0"},
        {"policy": "keydiff", "kv_type": "q4_0", "focus": "question"},
        {"policy": "h2o+critical", "reposition": "always", "focus": "What?"},
        {"policy": "snapkv+pyramid", "reposition": "always", "focus": "turn"},
    ],
)
def test_it_goes_with_shared_cells_other_types_and_turned_keys(tiny_model, text, fields):
    how = Setting(
        model=str(tiny_model(n_layer=2, n_ctx_train=2048, n_embd=128)), budget=80, block=32, recent=8, **fields
    )
    first, again = found(how, text), found(how, text)
    assert first == again
    assert all(0 < each.nll < 50 for each in first)


def test_an_answer_beyond_the_trained_context_is_refused(tiny_model, text):
    how = Setting(model=str(tiny_model(n_ctx_train=512)), budget=64, block=32, recent=8, reposition="never")
    long = Question("What is blue?", ("sea " * 500,))
    with (
        how.open(600, threads=1) as runtime,
        pytest.raises(edgekv.InputError, match=r"the answer ends at token .* 512"),
    ):
        ask_all(runtime, how, text, [long], nll=True)


def test_the_ceiling_is_looked_at(setting, text, monkeypatch):
    exceeded = edgekv.CeilingExceededError("over", planned_bytes=1, measured_bytes=2, ceiling_bytes=1)
    how = setting()
    with how.open(600, threads=1) as runtime, runtime.session() as session:
        session.read(files=[text])
        tokens = []
        monkeypatch.setattr(answer_likelihood, "next_losses", lambda _, scored: tokens.extend(scored) or [0.0])
        monkeypatch.setattr(runtime.guard, "check", lambda: exceeded if tokens else None)
        with pytest.raises(edgekv.CeilingExceededError):
            answer_likelihood.answer_nll(runtime, session, QUESTIONS[0])
