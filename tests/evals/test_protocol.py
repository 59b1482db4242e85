"""When a question is asked: in the turn of the text, or once the text is compacted."""

from __future__ import annotations

import pytest

import edgekv
from edgekv.archive.recalling import recalling
from edgekv.evals import question_protocol
from edgekv.evals.document import Question
from edgekv.evals.setting import Setting

QUESTIONS = (Question("What is blue?", ("sea",), max_tokens=4), Question("Who came?", ("nobody",), max_tokens=4))


@pytest.fixture
def asked(tiny_model, tmp_path, monkeypatch):
    """The replies under a focus, whether there was a probe, and the calls of the session that they took."""
    text = tmp_path / "text.txt"
    text.write_text("The sea was blue, and nobody came. " * 12)
    setting = Setting(model=str(tiny_model(n_layer=2, n_ctx_train=2048)), budget=64, block=32, recent=8)
    calls = []

    class Noted(edgekv.Session):
        def read(self, *arguments, **named):
            calls.append("read")
            super().read(*arguments, **named)

        def ask(self, *arguments, **named):
            calls.append("ask")
            return super().ask(*arguments, **named)

    monkeypatch.setattr("edgekv.runtime.Session", Noted)

    def asked(focus, nll=False, **fields):
        calls.clear()
        how = Setting(**{**setting.as_dict(), "focus": focus, **fields})
        with how.open(0, threads=1) as runtime:
            return question_protocol.ask_all(runtime, how, text, QUESTIONS, nll=nll), runtime.options.focus, list(calls)

    return asked


def test_a_text_is_read_for_each_question_of_its_turn_and_else_once(asked):
    assert asked("question")[1:] == (True, ["ask", "ask"])
    assert asked("turn")[1:] == (False, ["ask", "ask"])
    assert asked("What?")[1:] == (True, ["read", "ask", "ask"])
    assert asked("off")[1:] == (False, ["read", "ask", "ask"])
    assert asked("turn", nll=True)[1:] == (False, ["ask"] * 4)
    assert asked("off", nll=True)[1:] == (False, ["read", *["ask"] * 4])


@pytest.mark.parametrize("focus", ["off", "turn", "question"])
def test_with_an_archive_each_question_recalls_anew(asked, monkeypatch, focus):
    recalled = []

    def noted(*args, **options):
        recalled.append((yield from recalling(*args, **options)))
        return recalled[-1]

    monkeypatch.setattr("edgekv.cells.block_loop.recalling", noted)
    answered, _, _ = asked(focus, nll=True, archive="1MiB")
    assert [each.n_cells for each in recalled] == [16] * 4  # half a block, for a reply and a right answer each
    assert all(each.nll is not None for each in answered)


def test_the_first_reading_alone_is_watched(tiny_model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The sea was blue, and nobody came. " * 12)
    setting = Setting(model=str(tiny_model(n_layer=2, n_ctx_train=2048)), budget=64, block=32, recent=8, focus="turn")
    seen = []
    with setting.open(0, threads=1) as runtime:
        question_protocol.ask_all(runtime, setting, text, QUESTIONS, lambda progress: seen.append(progress.tokens_done))
    assert seen == sorted(set(seen))
    assert len(seen) > 3
