"""More memory never means fewer cells: plans of models of real sizes under rising ceilings, without their weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagonals import by_night

from edgekv.models.outline import write_outline
from edgekv.models.suggested import SUGGESTED, Tokenizer
from edgekv.planning.choice import Request
from edgekv.planning.estimate import Estimator

MIB = 1 << 20

_SMALL_QWEN = replace(
    next(model for model in SUGGESTED if model.architecture == "qwen2"),
    **{"file_name": "qwen2.5-0.5b", "quantization": "Q8_0", "n_layer": 24, "n_embd": 896, "n_ff": 4_864},
    **{"n_head": 14, "n_head_kv": 2, "head_dim": 64},
)
SHAPES = (*SUGGESTED, _SMALL_QWEN, replace(_SMALL_QWEN, file_name="qwen2.5-0.5b-tied", tied=True))
# no streaming, and with all cells: many heads; an embedding that is only looked up, little that is streamed
CHOSEN = (*(model for model in SUGGESTED if model.n_head_kv == model.n_head), _SMALL_QWEN, SUGGESTED[0])


class Ceilings:
    """Plans of one model under ceilings of whole MiB, each made once."""

    def __init__(self, path):
        self.request = Request.of(memory="1TiB").of_model(path)
        self.estimates = Estimator(path, self.request)
        self._plans = {}

    def plan(self, mib):
        if mib not in self._plans:
            options = replace(self.request.options, memory=mib * MIB)
            self._plans[mib] = self.estimates.best(replace(self.request, options=options))
        return self._plans[mib]

    def peak(self, **named):
        """Whole MiB that a setting takes."""
        return -(-self.estimates.plan(replace(self.request.options, repack=True, **named)).peak_bytes // MIB)

    def setting(self, mib):
        plan = self.plan(mib)
        return plan and (plan.kv_type, plan.block, plan.n_streamed)

    def check(self, low, high, step):
        """Check that cells do not fall from one ceiling to the next; whole MiB where the setting changes."""
        ceilings = [*range(low, high, step), high]
        while ceilings[1:]:
            lower, higher = ceilings[:2]
            if higher - lower > 1 and self.setting(lower) != self.setting(higher):
                ceilings.insert(1, (lower + higher) // 2)
                continue
            cells = [0 if plan is None else plan.budget_cells for plan in map(self.plan, ceilings[:2])]
            assert cells[0] <= cells[1], f"{lower} MiB: {self.setting(lower)}, {higher} MiB: {self.setting(higher)}"
            assert self.plan(higher) is None or self.plan(higher).fits
            del ceilings[0]


def check_shape(path, step):
    ceilings = Ceilings(path)
    with ceilings.estimates:
        low = ceilings.peak(budget=64, block=32, kv_type="q8_0", resident=0)
        high = ceilings.peak(budget=4096, block=512, kv_type="f16")
        ceilings.check(low - 2, high, step)
        first, last = ceilings.plan(low), ceilings.plan(high)
    assert first.n_streamed == first.n_layers
    assert last.n_streamed == 0
    assert last.budget_cells > 2048 > first.budget_cells


@pytest.mark.parametrize("model", by_night(CHOSEN, CHOSEN[:1]), ids=lambda model: model.file_name)
def test_rising_ceilings(model, tmp_path):
    """With a small vocabulary, and closer only where another setting is chosen."""
    small = replace(model, tokenizer=Tokenizer(model.tokenizer.pre, 2_000, 500))
    write_outline(tmp_path / "outline.gguf", small)
    check_shape(tmp_path / "outline.gguf", 128)


@pytest.mark.nightly
@pytest.mark.parametrize("model", SHAPES, ids=lambda model: model.file_name)
def test_every_ceiling(model, tmp_path):
    write_outline(tmp_path / "outline.gguf", model)
    check_shape(tmp_path / "outline.gguf", 1)
