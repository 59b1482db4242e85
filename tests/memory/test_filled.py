"""Bytes that a plan counts by the cell, the thread and the type of cache hold for any number of cells and threads."""

from __future__ import annotations

import pytest
from diagonals import by_night
from filled_cells import fill, load, save
from repeated import settled

pytest.importorskip("gguf")
from edgekv.options import KV_TYPES
from edgekv.testing.models.families import windowed
from edgekv.testing.models.families.family import Sizes
from edgekv.testing.models.families.sublayers import Experts
from edgekv.testing.models.vocabulary import make_vocabulary
from edgekv.testing.models.writer import write_tensors

MIB = 1 << 20
OPTIONS = {"memory": "512MiB", "threads": 1, "focus": False, "archive": "off"}


def test_many_cells_take_what_a_plan_counts_for_them(memory_ceiling, tiny_model):
    """Notes of llama.cpp's own, of every cell, would be 2.7 MiB more; some pages come and go by themselves."""
    model = tiny_model(n_layer=1, n_head=1, n_head_kv=1, head_dim=32, n_ctx_train=1 << 20)

    def uncounted():
        few, many = (memory_ceiling("512MiB").run(fill, model, **OPTIONS, budget=budget) for budget in (8_000, 40_000))
        assert many.value["cells"] == 40_128
        assert many.peak_bytes <= many.value["planned"]
        return many.peak_bytes - few.peak_bytes - (many.value["counted"] - few.value["counted"])

    assert settled(uncounted, 3 * MIB // 2) < 3 * MIB // 2


@pytest.mark.parametrize(("head_dim", "kib"), by_night([(64, 144), (256, 176), (512, 192)], [(64, 144)]))
def test_many_threads_take_what_a_plan_counts_for_them(memory_ceiling, tiny_model, head_dim, kib):
    """Tiles of attention grow with heads."""
    model = tiny_model(n_layer=1, n_head=64, n_head_kv=2, head_dim=head_dim, n_ctx_train=1 << 14)
    counted = 63 * kib * 1024

    def off():
        one, many = (
            memory_ceiling("512MiB").run(fill, model, **OPTIONS | {"threads": threads}, budget=512)
            for threads in (1, 64)
        )
        assert many.peak_bytes <= many.value["planned"]
        assert (many.value["counted"] - one.value["counted"]) // 63 // 1024 == kib
        return many.peak_bytes - one.peak_bytes - middle

    least, most = 0.75 * counted, counted + MIB
    middle = (least + most) / 2
    assert settled(off, most - middle) < most - middle


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kv_type", "stored_types"),
    by_night(
        [("q4_0", ("f16", "q4_0")), ("f16", tuple(KV_TYPES)), ("q4_0", tuple(KV_TYPES))],
        [("q4_0", ("f16", "q4_0"))],
    ),
    ids=str,
)
def test_loading_cells_of_another_type_takes_what_loading_its_own_does(
    memory_ceiling, tiny_model, tmp_path, kv_type, stored_types
):
    """The rows of a head, as they are stored and as they are wanted, would be 3 MiB more at least."""
    model = tiny_model(n_layer=1, n_head=1, n_head_kv=1, head_dim=512, n_ctx_train=1 << 14)
    options = OPTIONS | {"budget": 4000}
    for stored in stored_types:
        memory_ceiling("512MiB").run(save, model, str(tmp_path / stored), 3600, **options, kv_type=stored)

    def growth():
        peaks = {}
        for stored in stored_types:
            ended = memory_ceiling("512MiB").run(load, model, str(tmp_path / stored), **options, kv_type=kv_type)
            assert ended.value["cells"] > 3600
            assert ended.peak_bytes <= ended.value["planned"]
            peaks[stored] = ended.peak_bytes
        return max(peaks.values()) - peaks[kv_type]

    assert settled(growth, 3 * MIB // 2) < 3 * MIB // 2


@pytest.fixture(scope="module")
def with_experts(tmp_path_factory):
    """A model of 61 MiB, of which 57 are six weights of 32 experts each."""
    family = windowed.gpt_oss(Sizes(n_layer=2, n_embd=512, n_ff=1024), Experts(n=32, n_used=4, n_ff=1024))
    path = tmp_path_factory.mktemp("experts") / "model.gguf"
    words = make_vocabulary(family.tokenizer, family.vocab_size)
    return write_tensors(path, family.architecture, family.add_keys, family.tensors, words, quantization="Q4_0", seed=0)


@pytest.mark.parametrize("options", [{"repack": None}, {"resident": 0}, {"resident": 0.5, "repack": None}], ids=str)
def test_experts_take_what_a_plan_counts_for_them(memory_ceiling, with_experts, options):
    """While they are repacked, too; and if those are read that are chosen."""
    found = memory_ceiling("512MiB").run(fill, with_experts, **OPTIONS | options, budget=300)
    assert found.peak_bytes <= found.value["planned"]
    assert found.peak_bytes > found.value["planned"] - (20 if "resident" in options else 8) * MIB  # few may be chosen
