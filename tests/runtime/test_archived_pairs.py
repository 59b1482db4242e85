"""An archive beside grammars, streamed weights, documents, histories, and sessions that begin with a snapshot."""

from __future__ import annotations

import json

import jsonschema
import pytest
from small import SETTINGS, words

import edgekv
from edgekv.generation.sampler import GREEDY
from edgekv.testing.models.families import make_family

ARCHIVED = {"policy": "keydiff", "archive": "4MiB", "reposition": "never"}
RECALLED = SETTINGS["block"] // 2
pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(scope="module")
def model(tiny_model):
    """Path of a tiny model."""
    return tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, quantization="Q8_0")


def replies(path, **options):
    """Return what a session says, which recalls before each reply and evicts in its midst."""
    found = []
    with edgekv.Runtime(path, **SETTINGS | ARCHIVED | options) as rt, rt.session() as session:
        session.read(words(150))
        for question in ("What was it?", "And then?"):
            said = "".join(session.chat(question, max_tokens=70, sampling=GREEDY, allow_loops=True))
            found.append(said)
            assert (session.stats.recalled_cells, session.stats.recalls) == (RECALLED, 1)
            assert session.stats.evictions > 2
            assert (session.stats.archive_failure, session.stats.forgotten_tokens) == ("", 0)
    return found


def test_weights_that_are_read_when_their_turn_comes_change_no_recall(tmp_path):
    path = make_family(tmp_path / "model.gguf", "smollm3")
    alone, streamed = (replies(path, repack=False, **options) for options in ({}, {"resident": 0}))
    assert streamed == alone


def test_a_reply_under_a_schema_fits_it_across_evictions(model):
    schema = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 60, "maxItems": 60}
    with edgekv.Runtime(model, **SETTINGS | ARCHIVED | {"grammars": True}) as rt, rt.session() as session:
        session.read(words(150))
        said = "".join(session.chat("Which?", json_schema=schema, max_tokens=1000, allow_loops=True))
        jsonschema.validate(json.loads(said), schema)
        assert session.stats.recalls == 1
        assert session.stats.evictions > 10


def test_a_document_is_archived_as_a_text(model, tmp_path):
    (tmp_path / "book.html").write_text(f"<html><body><h1>Book</h1><p>{words(200)}</p></body></html>")
    with edgekv.Runtime(model, **SETTINGS | ARCHIVED) as rt, rt.session() as session:
        session.read(files=[tmp_path / "book.html"])
        "".join(session.ask("What?", max_tokens=2))
        assert session.stats.recalled_cells == RECALLED
        assert session.stats.forgotten_tokens == 0


def history(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def test_a_history_that_goes_on_recalls_what_was_evicted_of_it(model):
    options = {"max_tokens": 8, "sampling": GREEDY}
    with edgekv.Runtime(model, **SETTINGS | ARCHIVED) as rt, rt.session(history=True) as session:
        first = "".join(session.continue_from(history(words(150)), **options))
        assert session.stats.recalled_cells == RECALLED
        for question in ("What was it?", "And what else?"):  # the second one takes the place of the first
            "".join(session.continue_from(history(words(150), first, question), **options))
            stats = session.stats
            assert stats.reused_tokens > 100
            assert stats.recalled_cells == RECALLED
            assert stats.forgotten_tokens == 0


def test_a_session_that_begins_with_a_snapshot_recalls_what_came_before(model):
    with edgekv.Runtime(model, **SETTINGS | ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        with rt.session(start=session.snapshot()) as fork:
            fork.read(words(100, "other"))
            "".join(fork.chat("What?", max_tokens=2))
            assert fork.stats.archived_tokens > session.n_past
            assert (fork.stats.recalled_cells, fork.stats.forgotten_tokens) == (RECALLED, 0)
        "".join(session.chat("What?", max_tokens=2))
        assert (session.stats.recalled_cells, session.stats.forgotten_tokens) == (RECALLED, 0)
