"""Haystacks: books and made prose cut to tokens, and sentences planted in them."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from pathlib import Path

import pytest

from edgekv.errors import InputError
from edgekv.evals import english, prose

BOOK = "\n\n".join(itertools.islice(english.paragraphs(random.Random("a book")), 60))


@pytest.fixture(scope="module")
def model(tiny_model):
    with prose.vocabulary(str(tiny_model())) as model:
        yield model


def test_no_word_is_part_of_another() -> None:
    words = english.WORDS
    assert len(set(words)) == len(words)
    assert not [(a, b) for a, b in itertools.permutations(words, 2) if a in b]


def test_made_prose_is_whole_sentences_without_digits() -> None:
    for paragraph in itertools.islice(english.paragraphs(random.Random(3)), 300):
        assert not re.search(r"[\d{}]|  |\b[Aa] [aeiou]", paragraph)
        assert 5 <= len(re.findall(r'[.!?]"?(?= |$)', paragraph)) <= 10
        assert paragraph[0].isupper()
        assert paragraph[-1] == "."


def test_made_prose_varies_and_repeats_itself_only_for_the_same_seed() -> None:
    first, again, other = (
        list(itertools.islice(english.paragraphs(random.Random(seed)), 50)) for seed in ("x", "x", "y")
    )
    assert first == again
    assert not set(first) & set(other)
    assert len(set(first)) == 50


def test_made_prose_is_the_same_everywhere() -> None:
    text = "\n\n".join(itertools.islice(english.paragraphs(random.Random(0)), 100))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "6a72b1fab88e76a10d9333c566c0f484d551812c9cfa91c0f72e55d01505c181"
    )


@pytest.mark.parametrize("source", [None, BOOK])
@pytest.mark.parametrize("n_tokens", [50, 400, 1000])
def test_a_passage_has_as_many_tokens_as_asked_for(model, source: str | None, n_tokens: int) -> None:
    text = prose.passage(model, source, n_tokens, random.Random(1))
    assert abs(len(model.tokenize(text)) - n_tokens) <= 1
    assert text == prose.passage(model, source, n_tokens, random.Random(1))
    assert text != prose.passage(model, source, n_tokens, random.Random(2))
    if source is not None:
        assert text in source
        assert source[source.index(text) - 2 :].startswith(". ")


def test_a_book_that_is_too_short_begins_again(model) -> None:
    n_tokens = 3 * len(model.tokenize(BOOK))
    text = prose.passage(model, BOOK, n_tokens, random.Random(1), again=True)
    assert abs(len(model.tokenize(text)) - n_tokens) <= 1
    assert text in "\n\n".join([BOOK] * 5)
    enough = prose.passage(model, BOOK, 400, random.Random(1))
    assert prose.passage(model, BOOK, 400, random.Random(1), again=True) == enough


def test_a_book_loses_its_headings_and_line_breaks(tmp_path: Path) -> None:
    body = "It was a long sentence of many words that went on until the line had to\nbe broken, and further still."
    path = tmp_path / "book.txt"
    path.write_bytes(f"\ufeffCHAPTER I\r\n\r\n{body}\r\n\r\n{body}".encode())
    assert prose.read_book(path) == "\n\n".join([body.replace("\n", " ")] * 2)


def test_short_and_missing_texts_are_refused(model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        prose.read_book(tmp_path / "none.txt")
    with pytest.raises(InputError, match=r"has [\d,]+ tokens, but 100,000 are needed"):
        prose.passage(model, BOOK, 100_000, random.Random(0))
    for book in ("", "No end"):
        with pytest.raises(InputError, match="too few sentences"):
            prose.passage(model, book, 10, random.Random(0))
    with pytest.raises(InputError, match="has 1 token, but 8 are needed"):
        prose.first_tokens(model, "a", 8)
    with pytest.raises(InputError, match="no two sentences"):
        prose.plant("One sentence.", [(0.5, "A needle.")])


def test_sentences_are_planted_in_the_nearest_gaps_and_in_order() -> None:
    text = "One is here. Two is here. Three is here. Four is here."
    assert prose.plant(text, [(0.5, "Half.")]) == "One is here. Two is here. Half. Three is here. Four is here."
    planted = prose.plant(text, [(1.0, "Last."), (0.0, "First."), (0.9, "Before.")])
    assert planted == "One is here. First. Two is here. Three is here. Before. Last. Four is here."


def test_sentences_are_taken_while_they_fit(model) -> None:
    sentences = ["One is here.", "Two is here.", "Three is here."]
    two = prose.n_tokens_of(model, *sentences[:2])
    assert prose.fitting(model, sentences, two) == sentences[:2]
    assert prose.fitting(model, sentences, two - 1) == sentences[:1]
    assert prose.fitting(model, sentences, -1) == []
    assert prose.fitting(model, sentences, 10_000) == sentences
