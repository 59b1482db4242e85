"""The models that other tests run: llama.cpp loads them, and what they say depends on the whole text."""

from __future__ import annotations

import numpy as np
import pytest
from diagonals import by_night
from evicting import OF_EACH_KIND
from own_cache import own_cache

from edgekv.errors import ConfigError
from edgekv.testing.models.families import FAMILIES, make_family

N_TOKENS = 300


@pytest.mark.parametrize("name", by_night(FAMILIES, OF_EACH_KIND[::2]))
def test_llama_cpp_runs_it(family_model, name):
    tokens = np.random.default_rng(1).integers(3, 250, N_TOKENS).tolist()
    with own_cache(family_model(name), n_cells=512) as run:
        logits = run.read(tokens)
        assert np.isfinite(logits).all()
        assert logits.std() > 0.1
        for changed in (1, N_TOKENS - 20):
            others = [*tokens[:changed], 251, *tokens[changed + 1 :]]
            assert np.abs(run.read(others) - logits).max() > 1e-3 * logits.std()
        assert np.isfinite(run.step(3)).all()


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    first, again, other = (make_family(tmp_path / f"{i}", "lfm2", seed=seed) for i, seed in enumerate((1, 1, 2)))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("name", by_night(FAMILIES, OF_EACH_KIND[1::2]))
def test_quantised_weights_load_too(tmp_path, name):
    path = make_family(tmp_path / "model.gguf", name, quantization="Q8_0")
    with own_cache(path, n_cells=256) as run:
        assert np.isfinite(run.read(list(range(3, 40)))).all()


def test_unknown_families_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"family 'lorem' is unknown; choose one of .*'lfm2'"):
        make_family(tmp_path / "model.gguf", "lorem")
