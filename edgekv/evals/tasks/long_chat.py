"""The task "chat": late questions about facts that were told early in a chat of many turns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import edgekv
from edgekv.binding.model import Model
from edgekv.errors import ConfigError
from edgekv.evals import prose
from edgekv.evals.case import Case, book_text
from edgekv.evals.document import Question
from edgekv.evals.needle import MAX_NEEDLES, told_facts
from edgekv.evals.question_protocol import ask_from
from edgekv.evals.setting import OpenRuntime
from edgekv.generation.sampler import GREEDY

PARAMS = {"turns": (200,), "facts": (8,), "reply": (24,)}
TELLING = 4  # facts are told in the first of so many parts of a chat
REMARK = "I read this today: {text}\n\nWhat do you make of it?"
TEMPLATE_TOKENS = 48  # tokens that a turn takes beside what is quoted and said


@dataclass(frozen=True)
class Talk:
    """A chat: messages of the user, turn by turn, and questions about the facts among them."""

    messages: tuple[str, ...]
    questions: tuple[Question, ...]


def talk(model: Model, source: str | None, n_tokens: int, seed: int, n_turns: int, n_facts: int) -> Talk:
    """Return a chat of n_turns. Some of the first quarter tell a fact; the others quote n_tokens of prose in all.

    source: the running text of a book, which begins again if it is too short; None = generated prose

    Equal arguments give equal chats. Raises ConfigError for counts that cannot be, and InputError if the source is too
    short.
    """
    n_telling = n_turns // TELLING
    if not 1 <= n_facts <= min(MAX_NEEDLES, n_telling):
        raise ConfigError(
            f"facts={n_facts} cannot be told in the first quarter of {n_turns} turns; choose 1 to {MAX_NEEDLES} facts, "
            f"and at least {TELLING} turns for each"
        )
    n_quoting = n_turns - n_facts
    if n_tokens < n_quoting:
        raise ConfigError(f"length={n_tokens} gives {n_quoting} turns nothing to quote; give more tokens")
    rng = random.Random(seed)
    tokens = model.tokenize(prose.passage(model, source, n_tokens, rng, again=True))[:n_tokens]  # sometimes one fewer
    bounds = [i * len(tokens) // n_quoting for i in range(n_quoting + 1)]
    messages = [
        REMARK.format(text=prose.text_of(model, tokens[begin:end]).strip()) for begin, end in itertools.pairwise(bounds)
    ]
    facts = list(told_facts(rng, n_facts))
    for turn, (sentence, _) in zip(sorted(rng.sample(range(n_telling), n_facts)), facts, strict=True):
        messages.insert(turn, sentence)
    return Talk(tuple(messages), tuple(question for _, question in facts))


def measure(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """Hold a chat, and ask for each fact once all are told, in the midst, and at the end.

    score, scores: the mean of the answers at the end, in [0, 1], and of each question; nll, nlls: how unlikely the
        right answers are then (`answer_likelihood.answer_nll`)
    after: turns that had been when it was asked; scores_after, nlls_after: the means then

    The session does not know that it was asked: each question is asked of a snapshot.
    """
    n_turns, n_facts, n_reply = (case.params[name] for name in PARAMS)
    runtime = runtimes.get(case.setting, case.length + n_turns * (n_reply + TEMPLATE_TOKENS))
    said = talk(runtime.model, book_text(case.book), case.length, case.seed, n_turns, n_facts)
    marks = _marks(n_turns)
    found = []
    with runtime.session() as session:
        for turn, message in enumerate(said.messages, 1):
            for _ in session.chat(message, max_tokens=n_reply, allow_loops=True, sampling=GREEDY):
                pass
            if turn in marks:
                found.append(_asked(runtime, session, said.questions))
    scores, nlls = ([[each[i] for each in answered] for answered in found] for i in (0, 1))
    means = {name: [sum(row) / len(row) for row in rows] for name, rows in (("scores", scores), ("nlls", nlls))}
    return {
        "score": means["scores"][-1],
        "scores": scores[-1],
        "nll": means["nlls"][-1],
        "nlls": nlls[-1],
        "after": marks,
        "scores_after": means["scores"],
        "nlls_after": means["nlls"],
    }


def _marks(n_turns: int) -> list[int]:
    """Return the turns after which facts are asked for."""
    return [n_turns // TELLING, n_turns // 2, n_turns]


def _asked(
    runtime: edgekv.Runtime, session: edgekv.Session, questions: Sequence[Question]
) -> list[tuple[float, float]]:
    """Return the score of each reply, and how unlikely the right answer is; the session is as before."""
    before = session.snapshot()
    found = []
    for question in questions:
        answered = ask_from(runtime, session, question, before, nll=True)
        session.restore(before)
        assert answered.nll is not None
        found.append((question.score(answered.reply), answered.nll))
    return found
