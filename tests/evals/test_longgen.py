"""Long generations of a tiny model, against its float64 transformer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference_transformer import ReferenceModel

from bench.papers import longgen
from bench.papers.grid import PaperGrid
from bench.papers.long_generation import PROMPTS, SAMPLED, generate, long_generation, repetition
from edgekv.errors import ConfigError, InputError
from edgekv.evals.setting import FULL, OpenRuntime, Setting
from edgekv.evals.tokens import log_losses, prompt_tokens
from edgekv.generation.sampler import GREEDY

PROMPT, N_TOKENS = "It was late, and nobody came.", 150


@pytest.fixture
def path(tiny_model):
    return str(tiny_model(n_layer=2, n_ctx_train=512))


@pytest.fixture
def runtimes():
    with OpenRuntime(threads=1) as opened:
        yield opened


def small(path, **changes):
    return Setting(**{"model": path, "policy": "keydiff", "budget": 48, "block": 32, "recent": 8} | changes)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_what_was_said_is_judged_by_the_full_cache(path, runtimes, sampling):
    found = long_generation(runtimes, small(path), PROMPT, N_TOKENS, sampling)
    assert found["n_evictions"] >= 3
    runtime = runtimes.get(small(path), 0)
    given = prompt_tokens(runtime.model, PROMPT)
    said = generate(runtime, given, N_TOKENS, sampling)  # the same seed gives the same tokens
    assert "".join(runtime.model.text(said)) == found["text"]
    assert found["n_prompt"] == len(given)
    assert {name: found[name] for name in repetition(said)} == repetition(said)
    ends = [i for i, token in enumerate(said) if runtime.model.is_end(token)]
    assert found["end"] == (ends[0] if ends else None)

    logits = ReferenceModel.from_gguf(path).logits([*given, *said])[len(given) - 1 : -1]
    likely = np.exp(logits - logits.max(axis=1, keepdims=True))
    likely = (likely / likely.sum(axis=1, keepdims=True))[np.arange(N_TOKENS), said]
    assert found["ppl_full"] == pytest.approx(math.exp(-np.log(likely).mean()), rel=2e-3)


def test_the_full_cache_says_what_is_most_likely_to_it(path, runtimes):
    found = long_generation(runtimes, Setting(model=path, policy=FULL, block=32), PROMPT, N_TOKENS)
    runtime = runtimes.get(Setting(model=path, policy=FULL, block=32), 0)
    given = prompt_tokens(runtime.model, PROMPT)
    said = generate(runtime, given, N_TOKENS, GREEDY)
    logits = ReferenceModel.from_gguf(path).logits([*given, *said])[len(given) - 1 : -1]
    behind = logits.max(axis=1) - logits[np.arange(N_TOKENS), said]
    assert behind.max() < 0.05 * logits.std()
    assert found["n_evictions"] == 0


@pytest.mark.parametrize("policy", ["keydiff", "snapkv+ada", FULL])
def test_one_runtime_is_opened(path, runtimes, policy, monkeypatch):
    opened, open_ = [], Setting.open
    monkeypatch.setattr(Setting, "open", lambda self, *args, **kw: opened.append(self) or open_(self, *args, **kw))
    for _ in range(2):
        assert long_generation(runtimes, small(path, policy=policy), PROMPT, 60)["ppl_full"] > 1
    assert [setting.policy for setting in opened] == [policy]


@pytest.mark.parametrize("policy", ["keydiff", "snapkv+ada"])
def test_the_full_cache_beside_a_runtime_is_that_of_a_runtime(path, runtimes, policy):
    found = long_generation(runtimes, small(path, policy=policy), PROMPT, N_TOKENS)
    runtime = runtimes.get(small(path, policy=policy), 0)
    given = prompt_tokens(runtime.model, PROMPT)
    said = generate(runtime, given, N_TOKENS, GREEDY)
    full = runtimes.get(small(path, policy=FULL), len(PROMPT) + N_TOKENS)
    assert found["ppl_full"] == math.exp(math.fsum(log_losses(full, given, said)) / N_TOKENS)


def test_beyond_the_trained_context_the_full_cache_is_not_asked(path, runtimes):
    found = long_generation(runtimes, small(path), PROMPT, 520)
    assert found["ppl_full"] is None
    assert found["n_tokens"] == 520
    with pytest.raises(InputError, match="but the model was trained on 512"):
        long_generation(runtimes, small(path, reposition="never"), PROMPT, 520)


def test_something_must_be_said(path, runtimes):
    with pytest.raises(ConfigError, match="n_tokens=0 is not possible"):
        long_generation(runtimes, small(path), PROMPT, 0)


def test_prompts_are_texts_of_some_length():
    assert all(200 < len(prompt) < 400 for prompt in PROMPTS.values())


def test_a_text_without_four_tokens_has_no_share_of_them(path, runtimes, tmp_path):
    grid = PaperGrid(task="longgen", model=path, policies=("full",), lengths=(3,), samples=2)
    measured = [(case, longgen.measure(case, runtimes)) for case in grid.cases()]
    (row,) = longgen.table(measured).data
    assert (row["distinct_4"], row["n"]) == (None, 2)
    assert row["ppl_full"] > 1
    assert longgen.draw(measured, tmp_path) == []
