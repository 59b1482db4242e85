"""RULER's tasks (arXiv:2404.06654) except question answering: needles, variables, common and frequent words.

The structure, the sizes and the scoring are the published ones; sentences and word lists are our own. Text and question
are apart, so that the question can be asked after the text was compacted. docs/evaluation.md lists all differences.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgekv.binding.model import Model
from edgekv.errors import ConfigError, InputError

from . import english, prose, ruler_words
from .document import Document, Question

NOISE = (
    "The river runs slowly to the sea.",
    "The hills are bright in spring.",
    "Bread is baked before sunrise.",
    "Lamps are lit at dusk.",
    "Then the next day begins.",
)
CODES_PREFACE = "Access codes are hidden in the text below. Remember them, since they will be asked for afterwards.\n\n"
VARIABLES_PREFACE = (
    "Assignments to variables are hidden in the text below. Remember which variable gets which value.\n\n"
)

N_HOPS = 4
N_SEVERAL = 4  # keys or values of a task that has several
NEEDLE_MAX_TOKENS = 128
VARIABLES_MAX_TOKENS = 60

Draw = Callable[[random.Random], str]


def _key(rng: random.Random) -> str:
    return f"{rng.choice(english.ADJECTIVES)}-{rng.choice(english.NOUNS)}"


def _number(rng: random.Random) -> str:
    return str(rng.randrange(1_000_000, 10_000_000))


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _variable(rng: random.Random) -> str:
    return "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(5))


def _code(key: str, value: str) -> str:
    return f"One access code for {key} is {value}."


@dataclass(frozen=True)
class Needles:
    """A task of the family "needle in a haystack": codes (values) of keys; the question asks for some of them.

    haystack  "noise" (a few sentences again and again), "prose", or "needles" (codes that nobody asks for)
    n_values  of every key
    """

    haystack: str = "prose"
    key: Draw = _key
    value: Draw = _number
    n_keys: int = 1
    n_values: int = 1
    n_asked: int = 1

    def document(self, rng: random.Random, model: Model, source: str | None, n_tokens: int) -> Document:
        """Return needles at random depths, and a question about some of them."""
        n = self.n_keys * self.n_values
        keys = list(itertools.islice(english.distinct(lambda: self.key(rng)), self.n_keys)) * self.n_values
        values = itertools.islice(english.distinct(lambda: self.value(rng)), n)
        pairs = list(zip(keys, values, strict=True))
        n_left = n_tokens - len(model.tokenize(CODES_PREFACE))
        codes = _at_most_half(model, [_code(*pair) for pair in pairs], n_left, at_least=min(2, n))
        n_left -= prose.n_tokens_of(model, *codes)
        if self.haystack == "prose":
            text = prose.passage(model, source, n_left, rng)
        else:
            hay = itertools.cycle(NOISE) if self.haystack == "noise" else self._other_codes(rng, keys)
            text = " ".join(prose.fitting(model, hay, n_left))
        text = prose.plant(text, [(rng.random(), code) for code in codes])
        return Document(CODES_PREFACE + text, (self._question(rng, pairs[: len(codes)]),))

    def _question(self, rng: random.Random, pairs: list[tuple[str, str]]) -> Question:
        keys = list(dict.fromkeys(key for key, _ in pairs))
        asked = rng.sample(keys, min(self.n_asked, len(keys)))
        answers = tuple(value for key, value in pairs if key in asked)
        if len(answers) == 1:
            text = f"What is the access code for {asked[0]}? Answer with the code only."
        else:
            names = ", ".join(asked)
            text = f"What are all the access codes for {names}? Answer with the codes only, separated by commas."
        return Question(text, answers, NEEDLE_MAX_TOKENS)

    def _other_codes(self, rng: random.Random, keys: list[str]) -> Iterator[str]:
        while True:
            key = self.key(rng)
            if key not in keys:
                yield _code(key, self.value(rng))


NEEDLES = {
    "niah_single_1": Needles("noise"),
    "niah_single_2": Needles(),
    "niah_single_3": Needles(value=_uuid),
    "niah_multikey_1": Needles(n_keys=N_SEVERAL),
    "niah_multikey_2": Needles("needles"),
    "niah_multikey_3": Needles("needles", key=_uuid, value=_uuid),
    "niah_multivalue": Needles(n_values=N_SEVERAL),
    "niah_multiquery": Needles(n_keys=N_SEVERAL, n_asked=N_SEVERAL),
}


def variables(rng: random.Random, model: Model, n_tokens: int) -> Document:
    """A variable gets a value and others get it from one another, in one chain; all of them are asked for."""
    value = str(rng.randrange(10_000, 100_000))
    names = list(itertools.islice(english.distinct(lambda: _variable(rng)), N_HOPS + 1))
    chain = [f"Set {name} = {origin}." for name, origin in zip(names, [value, *names], strict=False)]
    n_left = n_tokens - len(model.tokenize(VARIABLES_PREFACE))
    chain = _at_most_half(model, chain, n_left, at_least=2)
    noise = " ".join(prose.fitting(model, itertools.cycle(NOISE), n_left - prose.n_tokens_of(model, *chain)))
    depths = sorted(rng.random() for _ in chain)
    text = prose.plant(noise, zip(depths, chain, strict=True))
    question = (
        f"Which {len(chain)} variables were set to {value}, directly or by way of other variables? "
        "Answer with their names only, separated by commas."
    )
    answers = tuple(names[: len(chain)])
    return Document(VARIABLES_PREFACE + text, (Question(question, answers, VARIABLES_MAX_TOKENS),))


TASKS = (*NEEDLES, "vt", "cwe", "fwe")


def document(task: str, model: Model, source: str | None, n_tokens: int, seed: int) -> Document:
    """A text of about n_tokens and one question about it.

    task     one of `TASKS`, by the published names
    source   the running text of a book for the haystacks of prose; None = generated prose

    Equal arguments give equal documents. Raises ConfigError for an unknown task, and InputError if the source or
    n_tokens is too short.
    """
    rng = random.Random(f"{task} {seed}")
    if task in NEEDLES:
        return NEEDLES[task].document(rng, model, source, n_tokens)
    if task == "vt":
        return variables(rng, model, n_tokens)
    if task == "cwe":
        return ruler_words.common_words(rng, model, n_tokens)
    if task == "fwe":
        return ruler_words.frequent_words(rng, model, n_tokens)
    raise ConfigError(f"task {task!r} is not known; choose one of {', '.join(TASKS)}")


def _at_most_half(model: Model, lines: list[str], n_tokens: int, at_least: int) -> list[str]:
    """The first of the lines that take at most half of n_tokens. Raises InputError if those are too few."""
    fit = prose.fitting(model, lines, n_tokens // 2)
    if len(fit) < at_least:
        needed = 2 * prose.n_tokens_of(model, *lines[:at_least])
        raise InputError(
            f"{max(0, n_tokens)} tokens beside the introduction are too few, {needed} are needed; ask for more"
        )
    return fit
