"""Needles: facts in prose, and their questions."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from edgekv.errors import ConfigError, InputError
from edgekv.evals import needle, prose

NOVEL = Path(__file__).parents[2].parent / "shared" / "data" / "jane-austen_pride-and-prejudice.txt"


@pytest.fixture(scope="module")
def model(tiny_model):
    with prose.vocabulary(str(tiny_model())) as model:
        yield model


@pytest.mark.parametrize("depth", [None, 0.0, 0.25, 1.0])
def test_a_single_needle_lies_at_its_depth(model, depth: float | None) -> None:
    document = needle.document(model, None, 2000, 7, depth)
    (question,) = document.questions
    (digits,) = question.answers
    assert document.text.count(needle.NUMBER.sentence.format(answer=digits)) == 1
    assert len(digits) == 5
    assert question.score(f"It is {digits}.") == 1
    assert question.score(f"It is {digits[:4]}.") == 0
    if depth is not None:
        assert document.text.index(digits) / len(document.text) == pytest.approx(depth, abs=0.1)


def test_seeds_decide_everything(model) -> None:
    for needles in (1, 3):
        documents = [needle.document(model, None, 500, seed, needles=needles) for seed in (0, 1, 0)]
        assert documents[0] == documents[2] != documents[1]
    first, other = (needle.document(model, None, 500, 0, depth).questions for depth in (0.1, 0.9))
    assert first == other  # a depth moves the needle, and changes nothing else


def test_a_book_that_is_too_short_begins_again(model) -> None:
    book = prose.passage(model, None, 400, random.Random(0))
    document = needle.document(model, book, 2000, 7)
    assert 2000 < len(model.tokenize(document.text)) < 2100


@pytest.mark.parametrize("n", range(2, needle.MAX_NEEDLES + 1))
def test_several_needles_are_of_different_kinds_and_spread(model, n: int) -> None:
    document = needle.document(model, None, 6000, n, needles=n)
    answers = [answer for question in document.questions for answer in question.answers]
    facts = {fact.question: fact for fact in needle.FACTS + needle.MORE_FACTS}
    assert len({question.text for question in document.questions}) == len(set(answers)) == n
    assert len({facts[question.text].draw for question in document.questions}) == min(n, len(needle.FACTS))
    for i, (question, answer) in enumerate(zip(document.questions, answers, strict=True)):
        sentence = facts[question.text].sentence.format(answer=answer)
        depth = document.text.index(sentence) / len(document.text)
        assert i / n - 0.1 <= depth <= (i + 1) / n + 0.1


@pytest.mark.parametrize("n_tokens", [300, 1000, 5000])
def test_needles_come_on_top_of_the_tokens_asked_for(model, n_tokens: int) -> None:
    for n in (1, 5):
        n_extra = len(model.tokenize(needle.document(model, None, n_tokens, 3, needles=n).text)) - n_tokens
        assert 10 * n < n_extra < 100 * n


def test_what_cannot_be_is_refused(model) -> None:
    for n in (0, needle.MAX_NEEDLES + 1):
        with pytest.raises(ConfigError, match=f"needles={n} is out of range"):
            needle.document(model, None, 500, 0, needles=n)
    for depth, n in ((1.5, 1), (-0.1, 1), (0.5, 2)):
        with pytest.raises(ConfigError, match=f"depth={depth} with needles={n}"):
            needle.document(model, None, 500, 0, depth, n)
    with pytest.raises(InputError, match="no two sentences"):
        needle.document(model, None, 3, 0)


@pytest.mark.skipif(not NOVEL.is_file(), reason="there are no books")
@pytest.mark.parametrize(
    ("n_tokens", "seed", "depth", "digest"),
    [
        (300, 0, None, "6c707ef51a794a194e15113d0e14b6c7139a4c79e1fc5b5374668547e0a8ecc6"),
        (1000, 2, None, "78dabe85949f0050688247683958650c28e40404528542469f9fd7f9e8b07412"),
        (4000, 1, 0.5, "11f62d2572eb72ff9e7f151283b2734a669832bd71211a988b1e0c7aeda5fdaf"),
    ],
)
def test_samples_are_those_of_all_earlier_measurements(default_model, n_tokens, seed, depth, digest) -> None:
    with prose.vocabulary(str(default_model)) as model:
        document = needle.document(model, prose.read_book(NOVEL), n_tokens, seed, depth)
    assert hashlib.sha256(document.text.encode()).hexdigest() == digest
