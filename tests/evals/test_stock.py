"""llama.cpp itself: what it reads and says is what edgekv does where nothing is evicted."""

from __future__ import annotations

import importlib.util
import os
from contextlib import closing
from pathlib import Path

import pytest

import edgekv
from edgekv.binding import library
from edgekv.binding.model import Model
from edgekv.errors import ConfigError
from edgekv.evals import stock
from edgekv.evals.stock import DefaultContext, Peer
from edgekv.options import Options
from edgekv.testing.models.families import make_family

BENCH = Path(__file__).parents[2] / "bench"
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


PEERS = {"alike": Peer.alike(OPTIONS), "at its defaults": Peer.at_defaults(1)}


@pytest.mark.parametrize("name", PEERS)
def test_it_says_what_edgekv_says_where_nothing_is_evicted(tiny_model, name):
    peer = PEERS[name]
    with Model(tiny_model(), peer.options) as model:
        tokens = model.tokenize(TEXT, begin=True)
        assert len(tokens) > 5 * OPTIONS.block
        with closing(peer.loop(model, len(tokens) + 8)) as loop:
            first, again = (list(said(loop, tokens, 8)) for _ in range(2))
            shorter = list(said(loop, tokens[:-40], 8))
    assert first == again != shorter
    with edgekv.Runtime(model.path, memory="100%", budget=400, block=16, threads=1) as runtime:
        runtime.block_loop.read(tokens, lambda _: True)
        with closing(edgekv.generation.sampler.Sampler(edgekv.generation.sampler.GREEDY)) as sampler:
            ours = []
            for _ in first:
                ours.append(sampler.sample(runtime.context))
                runtime.block_loop.step(ours[-1])
    assert ours == first


def test_more_than_its_cells_is_an_error(model):
    with closing(PEERS["alike"].loop(model, 256)) as loop, pytest.raises(edgekv.NativeError, match="at position 256"):
        loop.read([1] * 300)


@pytest.mark.parametrize("threads", [None, 3])
def test_at_its_defaults_only_threads_are_set(tiny_model, threads):
    llama = library.bindings()
    weights, own = llama.llama_model_default_params(), llama.llama_context_default_params()
    options = Peer.at_defaults(threads).options
    assert weights.use_extra_bufts == options.repack
    assert weights.load_mode == -1  # llama.cpp chooses: on a processor it maps
    assert (own.n_batch, own.n_ubatch, options.maps_weights) == (options.block, options.n_ubatch, True)
    with (
        Model(tiny_model(), options, no_alloc=True) as model,
        closing(DefaultContext(model, 300, options, None)) as made,
    ):
        counts = (llama.llama_n_threads(made.handle), llama.llama_n_threads_batch(made.handle))
    n_processors = os.cpu_count()
    assert counts == ((max(1, n_processors // 2), n_processors) if threads is None else (3, 3))


def test_what_it_cannot_take_is_said(tiny_model, monkeypatch):
    peer = Peer.alike(OPTIONS)
    assert peer.obstacle(tiny_model(), 512) is None
    assert peer.obstacle(tiny_model(), 513) == "513 tokens are more than the 512 that the model was trained on"
    with pytest.raises(ConfigError, match="heads of a multiple of 32"):
        Peer.alike(Options(kv_type="q8_0", threads=1)).obstacle(tiny_model(), 512)
    monkeypatch.setattr(stock, "parse_ceiling", lambda _: 1 << 18)
    assert peer.obstacle(tiny_model(), 512).endswith("but this machine has 0.2 MiB")


def test_the_bench_of_windows_compares_with_a_cache_whose_windows_are_small(tmp_path):
    spec = importlib.util.spec_from_file_location("bench_windows", BENCH / "windows.py")
    windows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(windows)
    path = make_family(tmp_path / "windowed.gguf", "gemma3")
    with Model(path, OPTIONS, no_alloc=True) as model:
        n_bytes = []
        for kind in (windows.WindowContext, windows.Context):
            with closing(kind(model, 1024, OPTIONS, None)) as context:
                memory = context.memory()
                n_bytes.append(memory.kv_bytes + memory.state_bytes)
    small, full = n_bytes
    assert small < full / 2
