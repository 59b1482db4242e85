"""A chat of many turns in which facts are told early, to be asked for later."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from edgekv.binding.model import Model
from edgekv.errors import ConfigError

from . import prose
from .document import Question
from .needle import MAX_NEEDLES, told_facts

TELLING = 4  # facts are told in the first of so many parts of a chat
REMARK = "I read this today: {text}\n\nWhat do you make of it?"


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
