"""RULER's tasks: every answer is found again from the text and the question alone."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter

import pytest

from edgekv.errors import ConfigError, InputError
from edgekv.evals import prose, ruler
from edgekv.evals.document import Document

SIZES = (1000, 2500, 4500)


@pytest.fixture(scope="module")
def model(tiny_model):
    with prose.vocabulary(str(tiny_model())) as model:
        yield model


@pytest.fixture(scope="module")
def published(default_model):
    """The vocabulary of the default model."""
    with prose.vocabulary(str(default_model)) as model:
        yield model


def answers_of_needles(document: Document) -> set[str]:
    """Return the values that the question's keys open, by all codes of the text."""
    codes = re.findall(r"One access code for (\S+) is (\S+)\.", document.text)
    asked = re.search(r"for (.*)\? ", document.questions[0].text)[1].split(", ")
    return {value for key, value in codes if key in asked}


def answers_of_variables(document: Document) -> set[str]:
    """Names whose assignments lead to the question's value, followed in the order of the text."""
    values: dict[str, str] = {}
    for name, source in re.findall(r"Set (\w+) = (\w+)\.", document.text):
        values[name] = values.get(source, source)
    wanted = re.search(r"\d{5}", document.questions[0].text)[0]
    return {name for name, value in values.items() if value == wanted}


def most_common(words: list[str], n: int) -> set[str]:
    """The n most frequent words, which all others come clearly after."""
    counts = Counter(words).most_common()
    assert counts[n - 1][1] > counts[n][1]
    return {word for word, _ in counts[:n]}


def answers_of_words(document: Document) -> set[str]:
    n = int(re.search(r"\d+", document.questions[0].text)[0])
    entries = re.findall(r"(\d+)\. (\w+)", document.text)
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    return most_common([word for _, word in entries], n)


def answers_of_code(document: Document) -> set[str]:
    return most_common(re.findall(r"\b[a-z]{6}\b", document.text.split("\n\n")[1]), 3)


def expected(task: str, document: Document) -> set[str]:
    others = {"vt": answers_of_variables, "cwe": answers_of_words, "fwe": answers_of_code}
    return others.get(task, answers_of_needles)(document)


@pytest.mark.parametrize("task", ruler.TASKS)
@pytest.mark.parametrize("n_tokens", SIZES)
def test_answers_follow_from_the_text_and_lengths_are_kept(model, task: str, n_tokens: int) -> None:
    for seed in (0, 1):
        document = ruler.document(task, model, None, n_tokens, seed)
        (question,) = document.questions
        assert set(question.answers) == expected(task, document)
        assert len(set(question.answers)) == len(question.answers)
        assert n_tokens - 130 <= len(model.tokenize(document.text)) <= n_tokens + 4
        assert question.text not in document.text


@pytest.mark.parametrize("task", ruler.TASKS)
def test_the_default_model_gets_the_published_sizes_from_1000_tokens_on(published, task: str) -> None:
    sizes = {"niah_multivalue": 4, "niah_multiquery": 4, "vt": 5, "cwe": 10, "fwe": 3}
    for n_tokens in (1000, 6000):
        document = ruler.document(task, published, None, n_tokens, 5)
        assert len(document.questions[0].answers) == sizes.get(task, 1)
        assert n_tokens - 90 <= len(published.tokenize(document.text)) <= n_tokens + 4
        assert set(document.questions[0].answers) == expected(task, document)
        n_codes = len(re.findall("One access code for", document.text))
        assert n_codes == {"niah_multikey_1": 4, "niah_multivalue": 4, "niah_multiquery": 4}.get(
            task, 1 if "single" in task else n_codes
        )


def test_words_come_as_often_as_published(published) -> None:
    for n_tokens, common, other in ((1000, 6, 1), (2000, 12, 2), (4096, 30, 3), (12_000, 60, 6)):
        text = ruler.document("cwe", published, None, n_tokens, 0).text
        assert set(Counter(re.findall(r"\d+\. (\w+)", text)).values()) == {common, other}


def test_short_texts_hold_fewer(published) -> None:
    n_words = [len(ruler.document("cwe", published, None, n, 0).questions[0].answers) for n in (200, 400, 800)]
    n_variables = [len(ruler.document("vt", published, None, n, 0).questions[0].answers) for n in (75, 100, 300)]
    assert 2 <= n_words[0] < n_words[1] < n_words[2] == 10
    assert 2 <= n_variables[0] < n_variables[1] < n_variables[2] == 5


@pytest.mark.parametrize("task", ruler.TASKS)
def test_texts_that_cannot_be_are_refused(model, task: str) -> None:
    with pytest.raises(InputError, match="ask for"):
        ruler.document(task, model, None, 10, 0)


def test_a_word_count_that_tells_nothing_is_refused(model) -> None:
    n = next(n for n in range(60, 1000, 20) if _works(model, n))
    with pytest.raises(InputError, match="too few words"):
        ruler.document("fwe", model, None, n - 20, 0)


def _works(model, n_tokens: int) -> bool:
    try:
        ruler.document("fwe", model, None, n_tokens, 0)
    except InputError:
        return False
    return True


def test_an_unknown_task_is_refused(model) -> None:
    with pytest.raises(ConfigError, match="'qa_1' is not known; choose one of niah_single_1, "):
        ruler.document("qa_1", model, None, 1000, 0)


def test_seeds_and_tasks_decide_everything(model) -> None:
    for task in ruler.TASKS:
        documents = [ruler.document(task, model, None, 1000, seed) for seed in (0, 1, 0)]
        assert documents[0] == documents[2]
        assert documents[0].text != documents[1].text
    texts = "".join(ruler.document(task, model, None, 1000, 0).text for task in ruler.TASKS)
    assert (
        hashlib.sha256(texts.encode()).hexdigest() == "22cc1f7529d5c7366ba9586267cd6cd352d7f078b6f6439c3a46b6aec97157f9"
    )


def test_a_book_is_the_haystack_of_the_tasks_in_prose(model) -> None:
    book = " ".join(f"Sentence {'x' * n} of the book." for n in range(1, 300))
    for task in ruler.TASKS:
        in_book = "of the book." in ruler.document(task, model, book, 1000, 0).text
        assert in_book == (task in ruler.NEEDLES and ruler.NEEDLES[task].haystack == "prose")


def test_a_score_is_the_share_of_the_answers_found(model) -> None:
    (question,) = ruler.document("vt", model, None, 1000, 2).questions
    names = list(question.answers)
    random.Random(0).shuffle(names)
    assert question.score(", ".join(names)) == 1
    assert question.score("They are " + " and ".join(names).lower()) == 1
    assert question.score(names[0]) == pytest.approx(1 / len(names))
    assert question.score(names[0] * 2) == pytest.approx(1 / len(names))
    assert question.score("none of them") == question.score("") == 0
