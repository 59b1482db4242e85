"""`edgekv heads`: measures a table, which policies with +heads then find; what cannot be measured is said."""

from __future__ import annotations

import json
import shutil

import pytest
from command import run_here

from edgekv.evals import head_needs
from edgekv.models.head_shares import path_beside, read_shares


@pytest.fixture
def model(tiny_model, tmp_path):
    copy = tmp_path / "model.gguf"
    shutil.copy(tiny_model(n_layer=2), copy)
    return copy


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("book") / "book.txt"
    sentences = [f"On day {i} the captain wrote to the harbour about the weather and the tides. " for i in range(400)]
    path.write_text("\n\n".join("".join(sentences[i : i + 4]) for i in range(0, 400, 4)))
    return path


def test_a_table_is_made_and_found(model, book):
    few = ("--passages", 2, "--tokens", 200, "--cells", 64, "--threads", 1)
    made = run_here("heads", "--model", model, "--text", book, *few)
    assert made.returncode == 0, made.stderr
    shares = read_shares(path_beside(model))
    assert sum(map(sum, shares.cells)) == pytest.approx(64 * 4)
    assert (shares.n_texts, shares.n_tokens, shares.budget) == (2, 200, 64)
    again = run_here("heads", "--model", model, "--text", book, *few, "--out", model.with_name("again.json"))
    assert again.returncode == 0
    assert read_shares(model.with_name("again.json")) == shares

    asked = run_here("plan", model, "--memory", "4GiB", "--budget", 64, "--json")
    assert json.loads(asked.stdout)["policy"] == "keydiff(rope=off)+heads+merge"
    answered = run_here(
        "ask", "-m", model, "--memory", "4GiB", "--budget", 64, "-f", book, "--json", "--max-tokens", 4, "What?"
    )
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)["policy"] == "keydiff(rope=off)+heads+merge"


@pytest.mark.parametrize(("small_weights", "n_cells"), [(head_needs.SMALL_WEIGHTS, 50), (1, 100)])
def test_a_small_model_is_measured_with_fewer_cells(model, monkeypatch, small_weights, n_cells):
    monkeypatch.setattr(head_needs, "SMALL_WEIGHTS", small_weights)
    made = run_here("heads", "--model", model, "--passages", 1, "--tokens", 400, "--threads", 1)
    assert made.returncode == 0, made.stderr
    assert read_shares(path_beside(model)).budget == n_cells


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", 64, "--cells", 64], "--tokens 64 fit 64 cells"),
        (["--tokens", 100_000], "tokens, but"),
        (["--out", "/nowhere/table.json"], "--out '/nowhere/table.json' cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_said(model, book, arguments, message):
    found = run_here("heads", "--model", model, "--text", book, "--passages", 1, "--threads", 1, *arguments)
    assert found.returncode == 2
    assert message in found.stderr
    assert not path_beside(model).exists()


def test_prose_is_made_where_no_text_is_named(model, tmp_path):
    made = run_here("heads", "--model", model, "--passages", 1, "--tokens", 200, "--cells", 64, "--threads", 1)
    assert made.returncode == 0, made.stderr
    assert sum(map(sum, read_shares(path_beside(model)).cells)) == pytest.approx(64 * 4)
    missing = run_here("heads", "--model", model, "--text", tmp_path / "no.txt")
    assert missing.returncode == 2
    assert "no.txt" in missing.stderr


def test_without_a_table_the_command_is_named(model):
    found = run_here("ask", "-m", model, "--memory", "4GiB", "--budget", 64, "--policy", "keydiff+heads", "What?")
    assert found.returncode == 2
    assert f"edgekv heads --model {model}" in found.stderr.replace("\n", " ")
