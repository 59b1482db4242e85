"""A long text in which single sentences state facts, and questions about them after it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgekv.binding.model import Model
from edgekv.errors import ConfigError

from . import english, prose
from .document import Document, Question

# Generated prose has none of these names of people and places, and books have them rarely.
_FIRST_NAMES = english.listed(
    "Anselm, Barnaby, Clement, Desmond, Eustace, Felix, Gideon, Horatio, Ignatius, Jasper, Lionel, Quentin"
)
_SURNAMES = english.listed(
    "Ashdown, Birtwhistle, Caldbeck, Dunmore, Fairweather, Greystoke, Hathersage, Lockridge, Penhallow, Thackray"
)
_PLACE_STARTS = english.listed("Amber, Bram, Crow, Dun, Elder, Fen, Gorse, Hazel, Kes, Lorn, Marrow, Otter")
_PLACE_ENDS = english.listed("bury, cliffe, combe, dale, gate, hurst, leigh, mere, stead, thorpe, wick, worth")
_MONTHS = english.listed("January, February, March, April, June, July, August, September, October, November, December")


def _number(rng: random.Random) -> str:
    return str(rng.randrange(10_000, 100_000))


def _word(rng: random.Random) -> str:
    return rng.choice(english.SIGHTS)


def _name(rng: random.Random) -> str:
    return f"{rng.choice(_FIRST_NAMES)} {rng.choice(_SURNAMES)}"


def _place(rng: random.Random) -> str:
    return rng.choice(_PLACE_STARTS) + rng.choice(_PLACE_ENDS)


def _date(rng: random.Random) -> str:
    return f"{rng.choice(_MONTHS)} {rng.randrange(1501, 1700)}"


@dataclass(frozen=True)
class Fact:
    """A sentence that states an answer, the question for it, and a function that draws the answer."""

    draw: Callable[[random.Random], str]
    sentence: str
    question: str


NUMBER = Fact(
    _number,
    "The secret number of the house is {answer}. Remember it.",
    "What is the secret number of the house? Answer with the number only.",
)
FACTS = (
    NUMBER,
    Fact(
        _word,
        "The password of the night watch is {answer}. Keep it in mind.",
        "What is the password of the night watch? Answer with the word only.",
    ),
    Fact(
        _name,
        "The keeper of the lighthouse is called {answer}. Remember the name.",
        "What is the keeper of the lighthouse called? Answer with the name only.",
    ),
    Fact(
        _place,
        "The treasure is buried in the village of {answer}. Do not forget it.",
        "In which village is the treasure buried? Answer with the name of the village only.",
    ),
    Fact(
        _date,
        "The great bridge was built in {answer}. Remember the date.",
        "In which month and year was the great bridge built? Answer with the month and the year only.",
    ),
)
MORE_FACTS = (
    Fact(
        _number,
        "The safe in the counting-house opens with {answer}. Note it well.",
        "Which number opens the safe in the counting-house? Answer with the number only.",
    ),
    Fact(
        _word,
        "The single word carved above the gate is {answer}. Remember it.",
        "Which word is carved above the gate? Answer with the word only.",
    ),
    Fact(
        _name,
        "The stolen letter was signed by {answer}. Keep it in mind.",
        "Who signed the stolen letter? Answer with the name only.",
    ),
    Fact(
        _place,
        "The last coach of the day goes to {answer}. Do not forget it.",
        "Where does the last coach of the day go? Answer with the name of the place only.",
    ),
    Fact(
        _date,
        "The peace with the islands was signed in {answer}. Note the date.",
        "In which month and year was the peace with the islands signed? Answer with the month and the year only.",
    ),
)
MAX_NEEDLES = len(FACTS) + len(MORE_FACTS)


def document(
    model: Model, source: str | None, n_tokens: int, seed: int, depth: float | None = None, needles: int = 1
) -> Document:
    """n_tokens of prose with facts planted between its sentences, and a question about each.

    source   the running text of a book, which begins again if it is too short; None = generated prose
    depth    of a single needle, as a share of the text; None = drawn
    needles  1 = the secret number; more = facts of different kinds, spread evenly over the text

    Equal arguments give equal documents. Raises ConfigError for a depth or a count that cannot be, and InputError if
    the source is too short.
    """
    if not 1 <= needles <= MAX_NEEDLES:
        raise ConfigError(f"needles={needles} is out of range; choose 1 to {MAX_NEEDLES}")
    if depth is not None and (needles > 1 or not 0 <= depth <= 1):
        raise ConfigError(f"depth={depth} with needles={needles}; a depth is that of one needle, from 0 to 1")
    rng = random.Random(seed)
    text = prose.passage(model, source, n_tokens, rng, again=True)
    if needles > 1:
        return _several(rng, text, needles)
    drawn = rng.random()
    answer = NUMBER.draw(rng)
    text = prose.plant(text, [(drawn if depth is None else depth, NUMBER.sentence.format(answer=answer))])
    return Document(text, (Question(NUMBER.question, (answer,)),))


def _several(rng: random.Random, text: str, n: int) -> Document:
    """One fact in each n-th of the text."""
    needles, questions = [], []
    for i, (sentence, question) in enumerate(told_facts(rng, n)):
        needles.append(((i + rng.random()) / n, sentence))
        questions.append(question)
    return Document(prose.plant(text, needles), tuple(questions))


def told_facts(rng: random.Random, n: int) -> Iterator[tuple[str, Question]]:
    """Draw n facts as they are needed, with different answers: of every kind one, before there are two of any."""
    answers: list[str] = []
    for fact in [*rng.sample(FACTS, len(FACTS)), *rng.sample(MORE_FACTS, len(MORE_FACTS))][:n]:
        answer = fact.draw(rng)
        while answer in answers:
            answer = fact.draw(rng)
        answers.append(answer)
        yield fact.sentence.format(answer=answer), Question(fact.question, (answer,))
