"""Losses of evicting against a float64 transformer, and choices against those of a running cache."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from reference_quant import stored_key, stored_value
from reference_transformer import ReferenceModel, attention, rms_norm

import edgekv
from bench.papers.full_read import FullRead
from bench.papers.grid import PaperGrid
from bench.papers.output_perturbation import N_QUERIES, capture_setting, kept_cells, perturbation, read_full
from edgekv.errors import BudgetError, ConfigError, InputError
from edgekv.evals.grid import in_process, measure, run
from edgekv.evals.results import Results
from edgekv.evals.setting import OpenRuntime, Setting
from edgekv.policies import POLICIES, parse_policy
from edgekv.policies.selection import Protection
from edgekv.testing.models.families import make_family

SHAPE = {"n_layer": 3, "n_embd": 128, "n_head": 6, "n_head_kv": 3, "head_dim": 64}
BLOCK, N_CELLS = 64, 192
TOKENS = np.random.default_rng(4).integers(3, 250, N_CELLS + BLOCK).tolist()
N_SINK, RECENT = 4, 32  # a Setting's defaults


@pytest.fixture(scope="module")
def path(tiny_model):
    return str(tiny_model(**SHAPE, n_ctx_train=1024))


@pytest.fixture(scope="module")
def runtime(path):
    with OpenRuntime(threads=1) as runtimes:
        yield runtimes.get(capture_setting(len(TOKENS), model=path, block=BLOCK), len(TOKENS))


def expected_losses(path, evicted):
    """Of the first queries after N_CELLS, where all heads lack the same cells: (n_layer, n_head_kv) and (n_layer,)."""
    model = ReferenceModel.from_gguf(path)
    hp, n = model.hparams, N_CELLS + N_QUERIES
    causal = np.broadcast_to(np.tri(n, dtype=bool), (hp.n_head_kv, n, n))
    left = causal.copy()
    left[:, N_CELLS:, evicted] = False
    x, heads, layers = model.embedding[TOKENS[:n]], [], []
    for layer in model.layers:
        q, k, v = model.heads(layer, rms_norm(x, layer.attn_norm, hp.rms_eps), np.arange(n))
        k, v = stored_key(k, "f16"), stored_value(v, "f16")
        whole, rest = (attention(q, k, v, mask) for mask in (causal, left))
        w_o = layer.wo.T.reshape(hp.n_head_kv, -1, hp.n_embd)
        y, y_hat = (
            np.einsum("tgc,gce->gte", out[N_CELLS:].reshape(N_QUERIES, hp.n_head_kv, -1), w_o) for out in (whole, rest)
        )
        heads.append(np.abs(y - y_hat).sum(axis=(1, 2)) / np.abs(y).sum(axis=(1, 2)))
        layers.append(np.abs((y - y_hat).sum(axis=0)).sum() / np.abs(y.sum(axis=0)).sum())
        x = x + whole.reshape(n, -1) @ layer.wo.T
        h = rms_norm(x, layer.ffn_norm, hp.rms_eps)
        x = x + (hp.activation(h @ layer.w_gate.T) * (h @ layer.w_up.T)) @ layer.w_down.T
    return np.array(heads), np.array(layers)


def test_losses_are_those_of_a_transformer_that_lacks_the_cells(path, runtime):
    budgets = (64, 128)
    found = perturbation(runtime, TOKENS, "sink", budgets)
    assert found["n_cells"] == N_CELLS
    for budget, heads, layers in zip(budgets, found["heads"], found["layers"], strict=True):
        evicted = np.arange(N_SINK, N_CELLS - (budget - N_SINK))
        of_heads, of_layers = expected_losses(path, evicted)
        assert of_heads.min() > 0.01
        np.testing.assert_allclose(heads, of_heads, rtol=5e-3)
        np.testing.assert_allclose(layers, of_layers, rtol=5e-3)


@pytest.mark.parametrize(
    "spec",
    [
        *POLICIES,
        "keydiff(window=0.2)",
        "snapkv+critical",
        "tova+caote",
        "h2o+ada",
        "snapkv+critical+ada",
    ],
)
def test_nothing_is_lost_where_nothing_is_evicted(runtime, spec):
    found = perturbation(runtime, TOKENS, spec, (48, N_CELLS))
    assert np.shape(found["heads"]) == (2, SHAPE["n_layer"], SHAPE["n_head_kv"])
    assert np.shape(found["layers"]) == (2, SHAPE["n_layer"])
    assert np.max(found["heads"][1]) < 1e-12
    assert np.max(found["layers"][1]) < 1e-12
    assert 0.01 < np.min(found["layers"][0]) <= np.max(found["layers"][0]) < 2


@pytest.mark.parametrize("spec", ["keydiff", "snapkv+critical", "h2o+ada", "tova+pyramid", "snapkv+ada"])
def test_what_is_kept_is_what_a_runtime_keeps(path, runtime, spec):
    """Of all cells at once, where float32 and float64 may rank two cells the other way round."""
    policy, budget = parse_policy(spec), 80
    protection = Protection(N_SINK, max(RECENT, policy.recent(budget)))
    kept = kept_cells(policy, read_full(runtime, TOKENS).choices(policy), budget, protection)

    whole = Setting(model=path, policy=spec, budget=N_CELLS, block=BLOCK)
    with whole.open(N_CELLS, threads=1) as other:
        cache = other.block_loop.cache
        for p0 in range(0, N_CELLS, BLOCK):
            cache.feed(TOKENS[p0 : p0 + BLOCK])
            if policy.carries and p0 + BLOCK < N_CELLS:
                cache.compact(policy, N_CELLS)
        cache.compact(policy, budget, n_sink=protection.n_sink, recent=protection.recent)
        for layer, head in np.ndindex(SHAPE["n_layer"], SHAPE["n_head_kv"]):
            assert len(np.setxor1d(cache.positions(layer, head), kept[layer][head])) <= 2


def test_what_cannot_be_measured_is_refused(path, runtime):
    with pytest.raises(ConfigError, match="64 tokens in blocks of 64 are too few"):
        perturbation(runtime, TOKENS[: 2 * BLOCK - 1], "sink", (48,))
    with pytest.raises(ConfigError, match=r"looks at 65 queries, but a block has 64"):
        perturbation(runtime, TOKENS, "snapkv(window=65)", (80,))
    with pytest.raises(ConfigError, match="carries depends on the budget"):
        perturbation(runtime, TOKENS, "ahakv(recent_accumulation=off)", (48,))
    with pytest.raises(ConfigError, match="turns keys before it scores"):
        perturbation(runtime, TOKENS, "keydiff(rope=off)+critical", (48,))
    with pytest.raises(ConfigError, match="open it with capture_setting"):
        perturbation(runtime, TOKENS * 2, "sink", (48,))
    with pytest.raises(BudgetError):
        perturbation(runtime, TOKENS, "sink", (N_SINK + RECENT - 1,))
    with (
        edgekv.Runtime(path, memory="4GiB", policy="keydiff", budget=512, block=BLOCK, threads=1) as other,
        pytest.raises(ConfigError, match="policy=keydiff and budget=512; open it with capture_setting"),
    ):
        perturbation(other, TOKENS, "sink", (48,))


def test_a_quantised_cache_is_refused(path):
    setting = Setting(model=path, policy="h2o", budget=len(TOKENS), block=BLOCK, kv_type="q8_0")
    with setting.open(0, threads=1) as runtime, pytest.raises(ConfigError, match="use kv_type=f16"):
        perturbation(runtime, TOKENS, "sink", (48,))


def test_a_text_beyond_the_trained_context_is_refused(tiny_model):
    short = str(tiny_model(n_layer=1, n_ctx_train=128))
    with (
        capture_setting(len(TOKENS), model=short, block=BLOCK).open(0, threads=1) as runtime,
        pytest.raises(InputError, match="256 tokens are wanted, but the model was trained on 128"),
    ):
        perturbation(runtime, TOKENS, "sink", (48,))


def test_a_text_is_read_once_for_all_policies_and_budgets(path, monkeypatch, tmp_path):
    policies, budgets = ("keydiff", "h2o", "snapkv+critical", "h2o+ada"), (64, 96)
    read = []
    monkeypatch.setattr(FullRead, "__init__", _noting(FullRead.__init__, read))
    fields = {"task": "perturbation", "model": path, "blocks": (BLOCK,), "lengths": (N_CELLS + BLOCK,), "samples": 2}
    cases = PaperGrid(**fields, policies=policies, budgets=budgets).cases()
    with Results(tmp_path / "results.jsonl") as results:
        list(run(cases, results, functools.partial(in_process, threads=1)))
        assert len(read) == 2
        together = [results.get(case.config()) for case in cases]
    assert len({str(result["layers"]) for result in together}) == len(cases)
    for case, result in list(zip(cases, together, strict=True))[::5]:
        with OpenRuntime(threads=1) as runtimes:
            assert measure(case, runtimes) == result


def _noting(init, read):
    def noting(self, runtime, tokens):
        read.append(len(tokens))
        init(self, runtime, tokens)

    return noting


def test_a_model_without_attention_is_refused(tmp_path):
    path = str(make_family(tmp_path / "mamba.gguf", "mamba2"))
    shape = {"blocks": (32,), "lengths": (96,), "samples": 1}
    (case,) = PaperGrid(task="perturbation", model=path, policies=("keydiff",), **shape).cases()
    with OpenRuntime(threads=1) as runtimes:
        assert "'mamba2' has no attention to measure" in measure(case, runtimes)["refused"]
