"""README's claims are measured by one command: each has a figure, and the exit status says whether all hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgekv.evals import claims, prose, speed
from edgekv.evals.needle import document
from edgekv.evals.speed import ALIKE, STOCK
from edgekv.testing.limited_run import Run

README = Path(__file__).parents[2] / "README.md"
FIGURES = {
    STOCK: (300e6, 40.0, 400.0),
    ALIKE: (280e6, 50.0, 400.0),
    "default": (180e6, 200.0, 500.0),
}  # bytes, tokens/s

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")


@pytest.fixture
def measured(monkeypatch, tiny_model):
    """A function that returns the claims by their sentences, over a tiny model and made-up figures."""
    monkeypatch.setattr(claims, "SHORT", 200)
    monkeypatch.setattr(claims, "LONG", 400)
    monkeypatch.setattr(claims, "RECALL_TOKENS", 120)
    monkeypatch.setattr(claims, "RECALL_TEXTS", 1)

    def figures(case, text):
        peak, decode, prefill = FIGURES[case.policy]
        speeds = {"decode_tok_per_s": decode, "prefill_tok_per_s": prefill}
        return dict.fromkeys(speed_figures(), 1.0) | speeds | {"prompt_tokens": case.n_tokens, "peak_bytes": peak}

    monkeypatch.setattr(speed, "measure", figures)
    path = str(tiny_model(n_ctx_train=2048))
    with prose.vocabulary(path) as vocabulary:
        answer = document(vocabulary, None, claims.SHORT, seed=0).questions[0].right
    monkeypatch.setattr(claims, "in_fresh_process", lambda *_: {"text": "No idea.", "peak_bytes": 200 << 20})
    monkeypatch.setattr(claims, "run_in_group", lambda *_: Run(0, 9.0, f"It is {answer}.\n", "", 120 << 20))
    return lambda: {it.claim: it for it in claims.measured_claims(1, path)}


def speed_figures():
    from edgekv.evals.speed_run import FIGURES

    return FIGURES


def test_every_claim_is_measured_in_its_order(measured):
    found = measured()
    assert tuple(found) == claims.CLAIMS
    assert found[claims.CONSTANT].figure.startswith("1.00: ")
    assert found[claims.SMALLER] == claims.Measured(claims.SMALLER, "0.60: 171.7 MiB and 286.1 MiB", True)
    assert found[claims.FASTER] == claims.Measured(claims.FASTER, "4.00: 200 tokens/s and 50 tokens/s", True)
    assert found[claims.READS].holds
    assert found[claims.LIMITED].holds


def test_a_claim_that_is_wrong_is_told(measured, monkeypatch):
    monkeypatch.setitem(FIGURES, "default", (250e6, 50.0, 300.0))
    monkeypatch.setattr(claims, "run_in_group", lambda *_: Run(-9, 9.0, "", "", 128 << 20))
    found = measured()
    wrong = {claim for claim, it in found.items() if it.holds is False}
    assert {claims.UNDER, claims.SMALLER, claims.FASTER, claims.READS, claims.LIMITED} <= wrong
    assert claims.CONSTANT not in wrong
    assert "a wrong answer" in found[claims.UNDER].figure
    assert not claims.holds(list(found.values()))


def test_what_this_machine_cannot_measure_is_not_wrong(measured, monkeypatch):
    def no_group(*_):
        raise SystemExit("no control group can be made: Permission denied")

    monkeypatch.setattr(claims, "run_in_group", no_group)
    it = measured()[claims.LIMITED]
    assert (it.figure, it.holds) == ("no control group can be made: Permission denied", None)
    assert claims.holds([it])


@pytest.mark.parametrize(("is_right", "status"), [(True, 0), (False, 1)])
def test_the_command_prints_claims_figures_and_the_machine(monkeypatch, capsys, is_right, status):
    from edgekv.cli import show_claims
    from edgekv.cli.main import main

    found = [claims.Measured("It is small.", "1 of 2", True), claims.Measured("It is quick.", "3 s", is_right)]
    monkeypatch.setattr(show_claims, "measured_claims", lambda threads: iter(found))
    monkeypatch.setattr(sys, "argv", ["edgekv", "bench", "--claims"])
    assert main() == status
    printed = capsys.readouterr().out
    assert "yes It is small.\n    1 of 2\n" in printed
    assert f"{'yes' if is_right else 'NO '} It is quick.\n    3 s\n" in printed
    assert "processors, " in printed
    monkeypatch.setattr(sys, "argv", ["edgekv", "bench", "--claims", "--json"])
    assert main() == status
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is is_right
    assert report["claims"][1] == {"claim": "It is quick.", "figure": "3 s", "holds": is_right}
    assert report["machine"].keys() == {"system", "processors", "memory_bytes"}


def test_an_interrupt_prints_what_was_measured(monkeypatch, capsys):
    from edgekv.cli import show_claims
    from edgekv.cli.main import INTERRUPTED, main

    def interrupted(threads):
        yield claims.Measured("It is small.", "1 of 2", True)
        raise KeyboardInterrupt

    monkeypatch.setattr(show_claims, "measured_claims", interrupted)
    monkeypatch.setattr(sys, "argv", ["edgekv", "bench", "--claims"])
    assert main() == INTERRUPTED
    assert "yes It is small." in capsys.readouterr().out


@pytest.mark.parametrize("claim", claims.CLAIMS)
def test_readme_says_what_is_measured(claim):
    assert claim in " ".join(README.read_text(encoding="utf-8").split())
