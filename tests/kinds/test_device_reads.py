"""Attention on a device reads from where kernels can read. A device behind an RPC server would read from anywhere."""

from __future__ import annotations

import ctypes as c

import numpy as np
import pytest
from graph_nodes import Tensor
from own_cache import watched_by
from recorded import recorded_runtime

from edgekv.binding import library

N_LAYER = 3
ALIGNMENT = 32  # alignment of ggml's processor backend, in bytes
MASK_RUN = 16  # bytes that CUDA reads at once
SHAPE = {"n_layer": N_LAYER, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_ctx_train": 1024}


class Reads:
    """Keys, values and mask of every attention node, as graphs are computed."""

    def __init__(self):
        self.found = []
        self.callback = library.bindings().ggml_backend_sched_eval_callback(self._call)
        library.load().ggml_op_desc.restype = c.c_char_p

    def _call(self, pointer, ask, _data):
        if ask and library.load().ggml_op_desc(c.c_void_p(pointer)) == b"FLASH_ATTN_EXT":
            node = c.cast(pointer, c.POINTER(Tensor)).contents
            k, v, mask = (node.src[i].contents for i in (1, 2, 3))
            strides = (*k.nb[2:3], *v.nb[2:3]) if k.ne[2] > 1 else ()
            mask_is_dense = mask.ne[0] == k.ne[1] and mask.nb[1] == 2 * mask.ne[0]
            self.found.append(((k.data, v.data, *strides), mask.data, mask_is_dense, k.ne[2]))
        return not ask


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_attention_reads_from_where_a_device_can(tiny_model, device, kv_type):
    if device == "host":
        pytest.skip("run by test_some_tests_run_over_rpc, with --device rpc")
    reads, tokens = Reads(), np.random.default_rng(3).integers(3, 250, 256).tolist()
    options = {"policy": "keydiff+ada", "budget": 61, "block": 32, "kv_type": kv_type}
    with watched_by(reads), recorded_runtime(tiny_model(**SHAPE), n_layer=N_LAYER, n_head_kv=2, **options) as run:
        run.read(tokens[:-8])
        for token in tokens[-8:]:
            run.step(token)
        assert any(len(first) != len(second) for first, second in run.kept())
    assert {n_heads for *_, n_heads in reads.found} == {1, 2}  # calls with heads of one length, and of several
    for rows, mask, mask_is_dense, _ in reads.found:
        assert all(at % ALIGNMENT == 0 for at in rows)
        assert mask % MASK_RUN == 0
        assert mask_is_dense
