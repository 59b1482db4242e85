"""Cells divided over heads by a table, in models of every kind: layers of one shape of rows share them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from diagonals import diagonal
from evicting import HEADS, RUN, heads_of
from recorded import recorded_runtime
from test_exact import BLOCK, BUDGET, tokens_of

from edgekv.models.head_shares import HeadShares, path_beside


@pytest.mark.parametrize(("name", "kv_type"), diagonal([name for name in RUN if HEADS[name]], ["f16", "q8_0"]))
def test_heads_get_what_a_table_says(family_model, tmp_path, name, kv_type):
    path = tmp_path / "model.gguf"
    shutil.copy(family_model(name), path)
    shares = [np.linspace(1, 3, n) * (1 + layer) for layer, n in enumerate(HEADS[name].values())]
    table = HeadShares(tuple(tuple(map(float, layer)) for layer in shares), BUDGET, "replay", 1, 1000)
    path_beside(path).write_text(table.to_json())
    options = {
        "policy": "keydiff+heads(safeguard=0)",
        "budget": BUDGET,
        "block": BLOCK,
        "kv_type": kv_type,
        "recent": 4,
    }
    with recorded_runtime(path, **heads_of(name), **options) as run:
        run.read(tokens_of())
        assert np.isfinite(run.step(5)).all()
        cells = np.concatenate([list(map(float, layer)) for layer in run.runtime.block_loop.cache.budgets()])
    assert cells.sum() == BUDGET * len(cells)
    assert len(cells) < 2 or np.ptp(cells) > 0
