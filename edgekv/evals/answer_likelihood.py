"""Measure the likelihood of the right answer to a question by teacher forcing: feed the answer, and sum up -ln p."""

from __future__ import annotations

import math
from typing import Any

import edgekv
from edgekv.binding.model import Model
from edgekv.errors import InputError
from edgekv.generation.sampler import GREEDY
from edgekv.prompt.template import chat_format, rendered
from edgekv.prompt.text import Prompt

from .document import Question
from .tokens import next_losses


def answer_tokens(model: Model, question: Question) -> list[int]:
    """Return the tokens of the right answer, as the beginning of a reply.

    If the chat template puts a space between the opening of a reply and its text, the answer begins with it. The tokens
    hold nothing else of the template, and no token that would end the reply. Raises InputError if there are none.
    """
    opening = chat_format(model, with_system=False).after_user
    try:
        before = rendered(model, ("user", "assistant")).before[1]
    except InputError:  # a template may render no reply, which is then written without a space
        before = opening
    space = before[len(opening) :] if before.startswith(opening) else ""
    answer = question.right if space.strip() else space + question.right
    tokens = list(Prompt(model).content(answer, role="assistant").tokens())
    if not tokens:
        raise InputError(f"the answer {question.right!r} is not in the model's vocabulary; choose another model")
    return tokens


def read_question(session: edgekv.Session, question: Question, **further: Any) -> None:
    """Read a question, and the files among `further`, as in a chat, up to the beginning of the reply."""
    for _ in session.chat(question.text, max_tokens=1, sampling=GREEDY, **further):
        pass  # the reply is not fed: the logits are for its first token


def answer_nll(runtime: edgekv.Runtime, session: edgekv.Session, question: Question) -> float:
    """Return the mean of -ln p over the tokens of the right answer, each after the question and the answer before it.

    The session has just read the question (`read_question`). The answer takes cells as a reply does, and is evicted as
    one. The session does not know of it: `restore` it or close it afterwards.

    Raises InputError for an answer that ends beyond the trained context, and CeilingExceededError.
    """
    tokens = answer_tokens(runtime.model, question)
    positions = runtime.block_loop.repositioning
    n_tokens = session.n_past + len(tokens)
    if positions.limit is not None and n_tokens > positions.limit:
        raise InputError(
            f"the answer ends at token {n_tokens}, but the model was trained on {positions.limit}, and "
            f"{positions.obstacle}, or take shorter texts"
        )
    mean = math.fsum(next_losses(runtime, tokens)) / len(tokens)
    exceeded = runtime.guard.check()
    if exceeded is not None:
        raise exceeded
    return mean
