"""The promises of edgekv, kept on a model that people run: `pytest --real NAME tests/real`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
import httpx

import edgekv
from edgekv.binding.model import Context, Model
from edgekv.evals.stock import StockLoop
from edgekv.options import Options

MIB = 1 << 20
TEXT = (Path(__file__).parents[2] / "examples" / "oz.txt").read_text(encoding="utf-8")
SHORT = TEXT[:2400]
N_SAID = 12
GREEDY = edgekv.Sampling(temperature=0, repeat_penalty=1)
WITHIN = 1.02  # the plan / the peak


@pytest.fixture(scope="module")
def options(real_model):
    """Options with room for all of SHORT, and little more, so that longer texts are evicted."""
    plan = edgekv.plan(real_model, memory="4GiB", budget=1024, block=128, threads=2)
    return {"memory": plan.peak_bytes + 256 * MIB, "budget": 1024, "block": 128, "threads": 2}


@pytest.fixture
def runtime(real_model, options):
    with edgekv.Runtime(real_model, **options) as made:
        yield made


def said(session, text=TEXT[2400:2600]):
    """Return the reply to a text as it stands. It needs no chat template, so base models reply, too."""
    return "".join(session.generate(text, max_tokens=N_SAID, sampling=GREEDY))


def centred(logits):
    """Return logits without what all of them have in common, which changes no probability."""
    return logits - logits.mean(dtype=np.float64)


def distance(found, expected):
    return np.sqrt(np.mean((found - expected) ** 2)) / expected.std()


def logits_of(path, tokens, options):
    """Return the logits after tokens of llama.cpp's own cache, which evicts nothing."""
    stock = Options(threads=2, block=options["block"])
    with Model(path, stock) as model:
        loop = StockLoop(Context(model, len(tokens) + 1, stock, None), stock.n_ubatch)
        try:
            loop.read(tokens)
            return centred(loop.context.logits_array())
        finally:
            loop.close()


def test_what_evicts_nothing_is_llama_cpps_own_cache(real_model, options, runtime):
    tokens = runtime.tokenize(SHORT)
    assert 300 < len(tokens) <= options["budget"]
    loop = runtime.block_loop
    loop.read(tokens, lambda n: True)
    found = centred(runtime.context.logits_array(loop.logits_row))
    expected = logits_of(real_model, tokens, options)
    assert found.argmax() == expected.argmax()
    cut = logits_of(real_model, [*tokens[:100], *tokens[228:]], options)
    # activations are rounded to 8 bits and windows summed in f16, which moves sums; a missing block moves them far more
    assert 2 * distance(found, expected) < distance(cut, expected)


def fill(model, options):
    """Read a text of three times the cells, and go on."""
    with edgekv.Runtime(model, **options) as runtime, runtime.session() as session:
        "".join(session.generate(TEXT[:13_000], max_tokens=4))
        return {"planned": runtime.plan.peak_bytes, "evicted": session.stats.tokens_seen - session.n_cells}


def test_the_plan_is_the_peak(real_model, options, memory_ceiling):
    """Not below it, and not far above it: a plan that is too careful takes cells from the text."""
    found = memory_ceiling(options["memory"]).run(fill, str(real_model), options)
    assert found.value["evicted"] > 1000
    assert found.peak_bytes <= found.value["planned"] <= WITHIN * found.peak_bytes + 8 * MIB


def test_a_session_goes_on_after_it_was_swapped_out_saved_and_loaded(real_model, options, runtime, tmp_path):
    with runtime.session() as session:
        said(session, SHORT)
        expected = said(session)
    with runtime.session() as session, runtime.session() as other:
        said(session, SHORT)
        said(other, "Another text altogether.")
        session.save(tmp_path / "saved")
        assert said(session) == expected
    with runtime.load_session(tmp_path / "saved") as loaded:
        assert said(loaded) == expected


def test_a_worker_says_the_same(real_model, options, runtime):
    with runtime.session() as session:
        said(session, SHORT)
        expected = said(session)
    with edgekv.Runtime(real_model, isolated=True, **options) as worker, worker.session() as session:
        said(session, SHORT)
        assert said(session) == expected


def test_a_server_says_the_same(real_model, options):
    from edgekv.server import Settings, app

    with edgekv.Runtime(real_model, **options) as runtime, runtime.session() as session:
        expected = said(session, SHORT)
    application = app(real_model, settings=Settings(hosts=()), grammars=False, parallel=1, **options)
    try:
        body = {
            "prompt": SHORT,
            "max_tokens": N_SAID,
            "temperature": 0,
            "repeat_penalty": 1,
            "edgekv": {"focus": False},
        }

        async def asked():
            transport = httpx.ASGITransport(application)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return (await client.post("/v1/completions", json=body, timeout=None)).json()

        assert asyncio.run(asked())["choices"][0]["text"] == expected
    finally:
        application.close()


def test_sessions_at_once_say_what_each_says_alone(real_model, options):
    beginnings = [SHORT[i * 400 : i * 400 + 400] for i in range(3)]
    alone = []
    with edgekv.Runtime(real_model, **options) as runtime:
        for text in beginnings:
            with runtime.session() as session:
                alone.append(said(session, text))
    try:
        together = edgekv.Runtime(real_model, parallel=3, **options | {"memory": options["memory"] + 256 * MIB})
    except edgekv.UnsupportedModelError as error:
        pytest.skip(str(error))
    found = {}

    def reply(i):
        with together.session() as session:
            found[i] = said(session, beginnings[i])

    with together:
        threads = [threading.Thread(target=reply, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[i] for i in range(3)] == alone
