"""llama.cpp's own loop: what it reads and says is what edgekv does where nothing is evicted."""

from __future__ import annotations

from contextlib import closing

import pytest

import edgekv
from edgekv.binding.model import Model
from edgekv.errors import ConfigError
from edgekv.evals import stock
from edgekv.evals.stock import StockLoop, obstacle
from edgekv.options import Options

TEXT = " ".join(f"word{i}" for i in range(30))
OPTIONS = Options(block=16, threads=1)


@pytest.fixture
def model(tiny_model):
    with Model(tiny_model(), OPTIONS) as model:
        yield model


def said(loop, tokens, n):
    loop.read(tokens)
    for _ in range(n):
        token = loop.sample()
        yield token
        loop.step(token)


def test_stock_says_what_edgekv_says_where_nothing_is_evicted(model):
    tokens = model.tokenize(TEXT, begin=True)
    assert len(tokens) > 5 * OPTIONS.block
    with closing(StockLoop(model, len(tokens) + 8, OPTIONS)) as loop:
        first, again = (list(said(loop, tokens, 8)) for _ in range(2))
        shorter = list(said(loop, tokens[:-40], 8))
    assert first == again != shorter
    with edgekv.Runtime(model.path, memory="100%", budget=400, block=16, threads=1) as runtime:
        runtime.controller.read(tokens, lambda _: True)
        with closing(edgekv.engine.sampler.Sampler(edgekv.engine.sampler.GREEDY)) as sampler:
            ours = []
            for _ in first:
                ours.append(sampler.sample(runtime.context))
                runtime.controller.step(ours[-1])
    assert ours == first


def test_more_than_its_cells_is_an_error(model):
    with closing(StockLoop(model, 256, OPTIONS)) as loop, pytest.raises(edgekv.NativeError, match="at position 256"):
        loop.read([1] * 300)


def test_what_stock_cannot_take_is_said(tiny_model, monkeypatch):
    with Model(tiny_model(), OPTIONS, no_alloc=True) as model:
        assert obstacle(model, 512, OPTIONS) is None
        assert obstacle(model, 513, OPTIONS) == "513 tokens are more than the 512 that the model was trained on"
        with pytest.raises(ConfigError, match="heads of a multiple of 32"):
            obstacle(model, 512, Options(kv_type="q8_0", threads=1))
        monkeypatch.setattr(stock, "parse_ceiling", lambda _: 1 << 18)
        assert obstacle(model, 512, OPTIONS).endswith("but this machine has 0.2 MiB")
