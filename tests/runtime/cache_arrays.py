"""Arrays of a running cache that a policy sees, as float64 for the reference formulas."""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import dequantize
from gguf_files import gguf_reader
from reference_quant import rotate
from reference_rope import rope_at

from edgekv.policies import Head
from edgekv.policies.critical import wo_norms


def read_rows(cache, layer, head, *, values=False):
    """One head's keys or values as float64 (n, d), un-rotated, in the order of its positions."""
    data, rows = cache.rows(layer, head, values=values)
    kind = gguf.GGMLQuantizationType(rows.type)
    array = dequantize(data.reshape(-1), kind).reshape(rows.n, rows.dim).astype(np.float64)
    return rotate(array, rows.rotation) if rows.rotation else array


def output_projections(path, n_head, n_head_kv, head_dim):
    """W_O by layer and KV head, (G, d_v, n_embd) float64, from the model's file."""
    found = []
    for tensor in gguf_reader(path).tensors:
        if tensor.name.endswith("attn_output.weight"):
            matrix = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)  # (n_embd, n_head * d_v)
            found.append(matrix.T.reshape(n_head_kv, n_head // n_head_kv, head_dim, -1))
    return found


class Heads:
    """Heads of a cache as the reference sees them, and what their cells carry from one compaction to the next.

    rope: of every layer (radians per position, pairs, first element), where rows are turned before they score
    """

    def __init__(self, n_layer, n_head_kv, w_o=None, rope=None):
        self.n_layer, self.n_head_kv, self.w_o, self.rope = n_layer, n_head_kv, w_o, rope
        self.part_ends = ()  # ends of a probe's parts
        self._carried = {}  # (layer, head) -> {position: accumulated}
        self._seen = 0

    def before(self, cache, policy, budget, layer_budgets, *, probed, generating):
        """Head of every (layer, KV head), before a compaction; updates what cells carry. `budget` is the mean of
        `layer_budgets`."""
        n_fresh, self._seen = cache.n_past - self._seen, cache.n_past
        every_row = policy.base.name == "h2o" or getattr(policy.base, "recent_accumulation", True) is False
        carries_on = every_row or generating
        heads = {}
        for layer in range(self.n_layer):
            queries = rows = scale = None
            if policy.n_rows(1 << 20):
                queries, rows, scale = cache.queries(layer, probed=probed)
                n = len(rows)
                if not probed and (every_row or (policy.base.name == "ahakv" and generating)):
                    n = min(n, n_fresh)
                queries, rows = queries[:, len(rows) - n :].astype(np.float64), rows[len(rows) - n :]
                queries = queries.reshape(self.n_head_kv, -1, *queries.shape[1:])
            for g in range(self.n_head_kv):
                positions = cache.positions(layer, g)
                if queries is not None:
                    rotation = cache.rows(layer, g)[1].rotation
                    queries[g] = rotate(queries[g], rotation) if rotation else queries[g]
                values = read_rows(cache, layer, g, values=True)
                carried = self._carried.get((layer, g), {}) if carries_on else {}
                keys = read_rows(cache, layer, g)
                if policy.base.before_rope and len(self.rope[layer][0]):
                    keys = rope_at(keys, -cache.positions(layer, g, rope=True), *self.rope[layer])
                head = Head(
                    keys=keys,
                    positions=positions,
                    values=values,
                    queries=None if queries is None else queries[g],
                    query_positions=rows,
                    part_ends=self.part_ends if probed else (),
                    scale=scale,
                    accumulated=np.array([carried.get(int(p), 0.0) for p in positions]),
                    wo_norm=None if self.w_o is None else wo_norms(values, self.w_o[layer][g]),
                    budget=layer_budgets[layer],
                    layer=layer,
                    head=g,
                )
                if policy.base.name in ("h2o", "ahakv"):
                    accumulated = policy.accumulate(head)
                    self._carried[layer, g] = dict(zip(positions.tolist(), accumulated.tolist(), strict=True))
                heads[layer, g] = head
        return heads
