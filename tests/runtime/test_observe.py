"""Kept cells as an inspection reports them, against what a session and its cells say."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

import edgekv
from edgekv.inspection import observe
from edgekv.inspection.feed_recorder import recording
from edgekv.inspection.observe import LONGEST
from edgekv.testing.models.families import make_family

BUDGET, BLOCK = 64, 32
LICENSE = Path(__file__).parents[2] / "LICENSE"
TEXT = " ".join(f"word{i}" for i in range(80)) + " naïve 漢字\n"


@pytest.fixture(scope="module")
def open_runtime(tiny_model):
    """A function that opens a runtime over a tiny model whose quantised keys are rotated."""
    path = tiny_model(n_layer=3, n_embd=128, n_head=4, n_head_kv=2, head_dim=64, n_ctx_train=2048)

    def open_runtime(**options):
        settings = {"budget": BUDGET, "block": BLOCK, "recent": 16, "threads": 1, **options}
        return edgekv.Runtime(path, memory="4GiB", **settings)

    return open_runtime


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize(("policy", "max_tokens"), [("keydiff", 0), ("snapkv+ada", 12)])
def test_what_is_kept_is_what_a_session_keeps(open_runtime, book, policy, max_tokens):
    with open_runtime(policy=policy) as rt:
        found = observe(rt, "What?", [book], max_tokens=max_tokens)
        with rt.session() as session:
            answer = "".join(session.ask("What?", [book], max_tokens=max(1, max_tokens)))
            n, heads = session.n_past, [(layer, head) for layer in range(3) for head in range(2)]
            rows = {head: np.isin(np.arange(n), session.kept_positions(*head)) for head in heads}
            assert found.budgets == session.budgets()
    kept = found.kept
    assert kept.heads == tuple(heads)
    assert len(kept.pieces) == n
    for head in heads:
        assert kept.row(*head).tolist() == rows[head].tolist()
    assert kept.counts.tolist() == sum(row.astype(int) for row in rows.values()).tolist()
    assert kept.by_layer() == [[int(rows[layer, head].sum()) for head in range(2)] for layer in range(3)]
    assert (len({n for layer in found.budgets for n in layer}) > 1) == ("ada" in policy)
    assert found.answer == (answer if max_tokens else "")
    assert found.stats.evictions > 3


def test_pieces_are_the_text_with_the_template_around_it(open_runtime, book):
    with open_runtime() as rt:
        asked = "".join(observe(rt, "What?", [book], system="Be brief.").kept.pieces)
        plain = "".join(observe(rt, files=[book, book]).kept.pieces)
        begin = observe(rt, "What?").kept
    assert asked.index("Be brief.") < asked.index(TEXT) < asked.index("What?")
    assert plain.endswith(TEXT + TEXT)
    assert begin.mask.all()  # nothing had to go


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_noted_keys_are_those_that_were_stored(open_runtime, kv_type):
    """Of kept tokens those in the cells, and of evicted ones those of a cache that evicts nothing: in the first layer,
    whose keys do not depend on what other layers keep."""
    with open_runtime(kv_type=kv_type) as rt, rt.session() as session:
        with recording(rt.block_loop, [(0, 1), (2, 0)]) as recorder:
            "".join(session.generate(TEXT, max_tokens=5))  # the last of which is not fed
        kept = {head: session.kept_positions(*head) for head in [(0, 1), (2, 0)]}
        cells = {head: stored(rt, head) for head in kept}
        assert rt.block_loop.watch is None
    for head, positions in kept.items():
        keys = recorder.keys(head)
        assert len(keys) == len(recorder.tokens) > 2 * len(positions)
        np.testing.assert_array_equal(keys[positions], cells[head])
    with open_runtime(kv_type=kv_type, budget=1024) as rt, rt.session() as session:
        "".join(session.generate(TEXT, max_tokens=1))
        np.testing.assert_array_equal(recorder.keys((0, 1))[: session.n_past], stored(rt, (0, 1)))


def test_keys_of_quantised_cells_need_no_extra(open_runtime, book, monkeypatch):
    """The default cache is quantised, and an install has no package that reads model files."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    with open_runtime(kv_type="q8_0") as rt:
        assert len(observe(rt, files=[book]).keys) == 3


def stored(rt, head):
    """Keys of the tokens in the cells of a head, by position, rotated as they are."""
    cache = rt.block_loop.cache
    data, rows = cache.rows(*head)
    return dequantize(data, gguf.GGMLQuantizationType(rows.type))[cache.positions(*head) >= 0]  # not a rest


def test_figures_of_keys_are_of_the_heads_that_are_named(open_runtime, book):
    with open_runtime() as rt:
        found = observe(rt, files=[book], layers=[2])
        assert [(study.layer, study.head) for study in found.keys] == [(2, 0), (2, 1)]
        for study in found.keys:
            assert study.kept.tolist() == found.kept.row(study.layer, study.head).tolist()
            assert len(study.points) == len(found.kept.pieces)
        assert observe(rt, files=[book], keys=False).keys == ()


@pytest.mark.nightly  # a claim
def test_keydiff_keeps_keys_of_a_larger_volume_than_sink(default_model):
    """As KeyDiff's figure 12 has it, whose random sets lie between: here in each of four heads."""
    kept = {}
    for policy in ("keydiff", "sink"):
        with edgekv.Runtime(default_model, memory="1GiB", policy=policy, budget=128, block=32, threads=1) as rt:
            kept[policy] = [study.volumes for study in observe(rt, files=[LICENSE]).keys]
    assert len(kept["keydiff"]) == 4
    for keydiff, sink in zip(kept["keydiff"], kept["sink"], strict=True):
        assert keydiff.kept > sink.kept + 3 * sink.deviation
        assert sink.kept < sink.random < sink.full


def test_what_has_no_room_to_be_copied_is_not(open_runtime, book, monkeypatch):
    with open_runtime() as rt:
        resident = rt.plan.ceiling_bytes - len(observe(rt, files=[book], keys=False).kept.pieces)
        monkeypatch.setattr("edgekv.memory.process.resident_bytes", lambda: resident)
        with pytest.raises(edgekv.CeilingError, match=r"does not hold what is copied of \d+ tokens: .*; longest=\d+ "):
            observe(rt, files=[book], keys=False)
        monkeypatch.undo()
        assert observe(rt, files=[book]).keys


def test_keys_that_the_disk_does_not_take_are_an_error(open_runtime, book, monkeypatch, tmp_path):
    with open_runtime() as rt:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
        with pytest.raises(edgekv.InputError, match=r"absent: No such file or directory; .* or give keys=False"):
            observe(rt, files=[book])
        assert observe(rt, files=[book], keys=False).keys == ()


def test_a_text_that_is_too_long_is_refused_before_it_is_read(open_runtime, tmp_path, book):
    long = tmp_path / "long.txt"
    long.write_text(TEXT * 100, encoding="utf-8")
    with open_runtime() as rt:
        with pytest.raises(edgekv.InputError, match=rf"tokens, more than longest={LONGEST}; .* or longest="):
            observe(rt, "What?", [long])
        assert rt.block_loop.cache.n_past == 0
        n_tokens = len(observe(rt, files=[book], keys=False).kept.pieces)
        for longest in (n_tokens, n_tokens - 1):
            with pytest.raises(edgekv.InputError, match=f"longest={longest}"):
                observe(rt, files=[book], max_tokens=2, longest=longest)
        observe(rt, files=[book], longest=n_tokens)


def test_what_cannot_be_inspected(open_runtime, book):
    with open_runtime(isolated=True) as rt, pytest.raises(edgekv.ConfigError, match="isolated=True keeps model"):
        observe(rt, "What?")
    with open_runtime(kv_type="q8_0") as rt:
        with pytest.raises(edgekv.InputError, match="give a question, a text file, or both"):
            observe(rt)
        with pytest.raises(edgekv.ConfigError, match="give a question too, or leave it out"):
            observe(rt, files=[book], system="Be brief.")
        with pytest.raises(edgekv.ConfigError, match="max_tokens=-1"):
            observe(rt, "What?", max_tokens=-1)
        assert observe(rt, "What?", keys=False).kept.mask.all()
        assert rt.block_loop.watch is None


def test_a_model_without_attention_keeps_nothing_that_could_be_shown(tmp_path, book):
    path = make_family(tmp_path / "mamba.gguf", "mamba2")
    with (
        edgekv.Runtime(path, memory="4GiB", threads=1) as runtime,
        pytest.raises(edgekv.UnsupportedModelError, match=r"mamba\.gguf has no cells of single heads"),
    ):
        observe(runtime, "Who?", [book])
