"""Chats: when facts are told, what is asked, and that asking leaves no trace."""

import pytest

from edgekv.errors import ConfigError
from edgekv.evals import prose
from edgekv.evals.grid import Grid
from edgekv.evals.setting import OpenRuntime
from edgekv.evals.tasks import long_chat

TURNS, FACTS, TOKENS = 16, 3, 130


@pytest.fixture
def model(tiny_model):
    with prose.vocabulary(str(tiny_model())) as opened:
        yield opened


def test_facts_are_told_in_the_first_quarter_and_the_rest_quotes_the_text(model):
    said = long_chat.talk(model, None, TOKENS, 7, TURNS, FACTS)
    assert said == long_chat.talk(model, None, TOKENS, 7, TURNS, FACTS)
    assert said != long_chat.talk(model, None, TOKENS, 8, TURNS, FACTS)
    assert len(said.messages) == TURNS
    answers = [question.right for question in said.questions]
    told = [i for i, message in enumerate(said.messages) if any(answer in message for answer in answers)]
    assert len(set(answers)) == len(told) == FACTS
    assert max(told) < TURNS // 4
    quoted = [message for i, message in enumerate(said.messages) if i not in told]
    assert all(message.startswith("I read this today: ") for message in quoted)


@pytest.mark.parametrize(
    ("tokens", "turns", "facts", "message"),
    [
        (TOKENS, TURNS, 0, "facts=0"),
        (TOKENS, TURNS, 5, "facts=5 cannot be told in the first quarter of 16 turns"),
        (TOKENS, 400, 11, "choose 1 to 10 facts"),
        (12, TURNS, 3, "length=12 gives 13 turns nothing to quote"),
    ],
)
def test_what_cannot_be_is_refused(model, tokens, turns, facts, message):
    with pytest.raises(ConfigError, match=message):
        long_chat.talk(model, None, tokens, 0, turns, facts)


@pytest.mark.parametrize("policy", ["full", "keydiff"])
def test_asking_leaves_no_trace(tiny_model, policy, monkeypatch):
    params = {"turns": (TURNS,), "facts": (FACTS,), "reply": (3,)}
    model = str(tiny_model(n_layer=2, n_ctx_train=4096))
    grid = Grid(
        task="chat", model=model, policies=(policy,), budgets=(96,), lengths=(TOKENS,), samples=1, params=params
    )
    (case,) = grid.cases()
    with OpenRuntime(threads=1) as runtimes:
        found = long_chat.measure(case, runtimes)
        assert found["after"] == [TURNS // 4, TURNS // 2, TURNS]
        assert len(found["scores_after"]) == len(found["nlls_after"]) == 3
        assert found["nll"] == found["nlls_after"][-1] == pytest.approx(sum(found["nlls"]) / FACTS)
        assert found["score"] == sum(found["scores"]) / FACTS
        monkeypatch.setattr(long_chat, "_marks", lambda n_turns: [n_turns])
        at_the_end = long_chat.measure(case, runtimes)
    assert (at_the_end["nlls"], at_the_end["scores"]) == (found["nlls"], found["scores"])


def test_a_passage_may_have_fewer_tokens_once_it_is_read_again(model, monkeypatch):
    cut_out = prose.passage
    monkeypatch.setattr(prose, "passage", lambda *arguments, **options: cut_out(*arguments, **options)[:-3])
    assert len(long_chat.talk(model, None, TOKENS, 7, TURNS, FACTS).messages) == TURNS
