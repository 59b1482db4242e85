"""Questions about texts of the user's own: what a file may say, what is told of one that is wrong, and scores."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

import edgekv
from bench.papers.grid import PaperGrid
from edgekv.evals import qa
from edgekv.evals.grid import Grid, in_process, run
from edgekv.evals.qa import OpenQuestion, read_items
from edgekv.evals.results import Results
from edgekv.evals.suite import load_suite

OWN = Path(__file__).parents[2] / "examples" / "questions.jsonl"
GOOD = {
    "documents": ["The sea was blue. " * 40, "Nobody came."],
    "question": "Who came?",
    "answers": ["nobody", "none"],
}


@pytest.fixture
def data(tmp_path):
    """Writes a file of lines, each a text or what becomes one; gives its path."""

    def data(*lines, name="own.jsonl"):
        path = tmp_path / name
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return path

    return data


def test_the_projects_own_set_has_its_answers_in_its_texts():
    items = read_items(OWN)
    assert 20 <= len(items) <= 40
    assert len({item.question.text for item in items}) == len(items)
    assert OWN.stat().st_size < 100 << 10
    assert all(item.question.score(item.text) == 1 for item in items)


def test_documents_and_answers_may_be_one_text_or_several(data):
    path = data(GOOD, "", {"documents": "It rained.", "question": "Did it?", "answers": "yes", "id": 7})
    first, second = read_items(path)
    assert first.text.endswith("blue. \n\nNobody came.")
    assert first.question.answers == ("nobody", "none")
    assert first.question.right == "nobody"
    assert (second.text, second.question.answers) == ("It rained.", ("yes",))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2 of .*own.jsonl is not JSON .*; write one object a line"),
        ("[" * 100_000, r"line 2 of .*own.jsonl is not JSON"),
        ([1], r"line 2 of .* is a list; write one object a line"),
        ({**GOOD, "answers": []}, r"line 2 of .*: 'answers' is an empty list; give at least one text"),
        ({"documents": "a", "answers": "b"}, r"line 2 of .* has no 'question'; give each line the fields"),
        ({**GOOD, "documents": []}, r"line 2 of .*: 'documents' is an empty list; give at least one text"),
        ({**GOOD, "documents": ["a", None]}, r"line 2 of .*: 'documents' holds null; give a text or a list of texts"),
        ({**GOOD, "documents": {"a": 1}}, r"'documents' holds an object; give a text or a list of texts"),
        ({**GOOD, "question": ["a"]}, r"line 2 of .*: 'question' holds a list; give a text"),
        ({**GOOD, "question": " \n"}, r"'question' holds a blank text; give one with words"),
        ({**GOOD, "answers": 42}, r"'answers' holds a number; give a text or a list"),
        ({**GOOD, "answers": [True]}, r"'answers' holds true"),
        ({**GOOD, "answers": ["b", "The!"]}, r"'The!' in 'answers' has only articles and punctuation"),
        ({**GOOD, "documents": "half \ud83d"}, r"'documents' holds half a character"),
    ],
)
def test_a_wrong_line_is_told_with_its_field_and_a_remedy(data, line, message):
    with pytest.raises(edgekv.InputError, match=message):
        read_items(data(GOOD, line))


def test_a_line_without_documents_asks_about_those_before_it(data):
    question = {"question": "What was blue?", "answers": "sea"}
    other = {**GOOD, "documents": "It rained."}
    items = read_items(data(GOOD, question, "", other, question))
    assert [item.text for item in items] == [items[0].text] * 2 + ["It rained."] * 2
    with pytest.raises(edgekv.InputError, match=r"line 1 of .* has no 'documents'; give each line the fields"):
        read_items(data(question, name="none.jsonl"))


def test_a_file_that_is_none_is_told(tmp_path, data):
    with pytest.raises(edgekv.InputError, match=r"none.jsonl cannot be read: .*; give a file of JSON lines"):
        read_items(tmp_path / "none.jsonl")
    with pytest.raises(edgekv.InputError, match=r"holds no question; give a file with lines such as"):
        read_items(data("", name="empty.jsonl"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}')
    with pytest.raises(edgekv.InputError, match="is not UTF-8 text"):
        read_items(tmp_path / "latin.jsonl")


@pytest.mark.parametrize(
    ("reply", "answer", "held", "f1"),
    [
        ("The Glass Owl.", "a glass owl", True, 1.0),
        ("It was a glass owl!", "glass owl", True, 2 * 2 / (4 + 2)),
        ("an owl of glass", "glass owl", False, 2 * 2 / (3 + 2)),
        ("I know", "no", False, 0.0),
        ("", "no", False, 0.0),
        ("no no", "no", True, 2 / 3),
        ("„Nein“, sagte er", "nein", True, 0.5),
    ],
)
def test_scores_count_words(reply, answer, held, f1):
    assert qa.holds(reply, answer) is held
    assert qa.word_f1(reply, answer) == pytest.approx(f1)


def test_the_best_spelling_counts():
    question = OpenQuestion("How many?", ("forty-two", "42"))
    assert (question.score("There are 42."), question.score("forty two")) == (1, 0)
    assert question.f1("42") == question.f1("Forty-two!") == 1


@pytest.fixture
def measured(tiny_model, tmp_path):
    """The cases and results of a grid over a tiny model."""
    model = str(tiny_model(n_layer=2, n_ctx_train=2048))

    def measured(**fields):
        fields = {"policies": ("full", "keydiff"), "budgets": (64,), "blocks": (32,), "recent": 8} | fields
        cases = PaperGrid(task="qa", model=model, **fields).cases()
        with Results(tmp_path / "results.jsonl") as results:
            list(run(cases, results, functools.partial(in_process, threads=1)))
            return [(case, results.get(case.config())) for case in cases]

    return measured


def test_every_question_of_a_file_is_a_text(measured, data, tmp_path):
    path = data(GOOD, {**GOOD, "question": "What is blue?", "answers": "the sea"}, GOOD)
    found = measured(data=path, oracle=True, metrics=("answer-nll",))
    assert [(case.setting.policy, case.seed) for case, _ in found] == [
        (policy, seed) for policy in ("full", "keydiff", "oracle") for seed in range(3)
    ]
    table = PaperGrid.tasks["qa"].table(found, None)
    assert [line["n"] for line in table.data] == [3, 3, 3]
    assert {"F1", "below oracle", "nll", "above full", "above oracle"} <= set(table.headers)
    assert "as given" in table.rows[0]
    written = (tmp_path / "results.jsonl").read_bytes()
    assert measured(data=path, oracle=True, metrics=("answer-nll",)) == found
    assert (tmp_path / "results.jsonl").read_bytes() == written
    other = data(GOOD, name="own.jsonl")  # another file under the same name is measured anew
    assert measured(data=other)[0][1] is not None
    assert (tmp_path / "results.jsonl").read_bytes() != written


def test_a_ceiling_goes_with_questions_of_ones_own(measured, data):
    path = data(GOOD)
    here, under = (
        measured(data=path, memory=memory, metrics=("answer-nll",), policies=("keydiff",), focus=("question",))
        for memory in (None, "2GiB")
    )
    for (_, known), (_, found) in zip(here, under, strict=True):
        assert found.pop("alone")["tokens"] > 200
        assert found == known


def test_a_ceiling_that_does_not_hold_the_text_is_told(measured, data):
    ((_, found),) = measured(data=data(GOOD), memory="1MiB", policies=("full",))
    assert "memory=1.0 MiB" in found["refused"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "qa"}, "name a file of questions"),
        ({"task": "qa", "data": OWN, "lengths": (100,)}, "lengths=.* with the task qa"),
        ({"task": "qa", "data": OWN, "book": OWN}, "book=.* with the task qa"),
        ({"task": "needle", "data": OWN}, "data=.* with the task needle, which makes its texts"),
        ({"task": "perplexity", "memory": "2GiB"}, "a ceiling is possible with needle, ruler, qa"),
        ({"task": "perplexity", "metrics": ("answer-nll",)}, "metric=answer-nll with the task perplexity"),
        ({"task": "needle", "metrics": ("warmth",)}, "metric='warmth' is unknown; possible: answer-nll"),
    ],
)
def test_what_does_not_go_together_is_refused(fields, message):
    with pytest.raises(edgekv.ConfigError, match=message):
        Grid(**fields)


def test_a_suite_may_have_data_beside_a_book(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(f'[[grid]]\ntask = "qa"\ndata = "{OWN}"\nmetrics = ["answer-nll"]\n[[grid]]\ntask = "ruler"')
    own, other = load_suite(str(suite), book=OWN)
    assert (own.data, own.book, own.metrics) == (OWN, None, ("answer-nll",))
    assert (other.data, other.book) == (None, OWN)
    assert len({case.seed for case in own.cases()}) == 32


def test_a_first_question_that_is_not_there_is_told(data):
    with pytest.raises(edgekv.ConfigError, match=r"seed=5, but .* has 1 question;"):
        Grid(task="qa", data=data(GOOD), seed=5).cases()
