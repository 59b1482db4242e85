"""Likelihoods of answers, and oracles, over models of every kind of memory."""

from __future__ import annotations

import pytest
from diagonals import by_night

import edgekv
from bench.papers.asking import looking
from bench.papers.attention_mass import attention_masses
from bench.papers.oracle import OracleSetting
from edgekv.evals.document import Question
from edgekv.evals.question_protocol import ask_all
from edgekv.evals.setting import Setting

QUESTIONS = (Question("What is blue?", ("sea",), max_tokens=2), Question("Who came?", ("nobody",), max_tokens=2))

# sliding windows, learnt sinks, states and attention, states alone, latents, layers that share rows
KINDS = ("gemma3", "gpt-oss", "lfm2", "mamba2", "deepseek2", "gemma3n")


@pytest.mark.parametrize("name", by_night(KINDS, ["gemma3", "mamba2", "deepseek2"]))
def test_answers_have_a_likelihood_under_full_few_and_chosen_cells(family_model, tmp_path, name):
    text = tmp_path / "text.txt"
    text.write_text("The sea was blue, and nobody came. The old house stood empty that year. " * 3)
    found = {}
    for policy in ("full", "snapkv", "oracle"):
        kind = OracleSetting if policy == "oracle" else Setting
        setting = kind(model=str(family_model(name)), policy=policy, budget=64, block=32, recent=8)
        with setting.open(300, threads=1) as runtime:
            look = looking(runtime, setting) if policy == "oracle" else None
            n_layer = runtime.block_loop.cache.shape.n_layer
            first, again = (ask_all(runtime, setting, text, QUESTIONS, nll=True, look=look) for _ in range(2))
        assert first == again
        found[policy] = [each.nll for each in first]
        assert all(nll > 0 for nll in found[policy])
    if n_layer:
        assert found["full"] != found["oracle"] != found["snapkv"] != found["full"]
    else:  # a state is never evicted
        assert found["full"] == found["oracle"]


@pytest.mark.parametrize(("name", "what"), [("gpt-oss", "sinks"), ("deepseek2", "latents"), ("gemma2", "softcapped")])
def test_attention_that_is_not_recomputed_is_refused(family_model, tmp_path, name, what):
    setting = Setting(model=str(family_model(name)), budget=64, block=32, recent=8)
    with setting.open(300, threads=1) as runtime, pytest.raises(edgekv.ConfigError, match=what):
        attention_masses(runtime, setting, tmp_path / "text.txt", QUESTIONS)
