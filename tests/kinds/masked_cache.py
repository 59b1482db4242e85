"""Logits of a model whose heads miss some tokens: llama.cpp's own graph over a cache that evicts nothing, with the
attention scores of hidden cells put to -inf on their way to the softmax.

So every architecture has a reference, whatever else its layers compute.
"""

from __future__ import annotations

import ctypes as c

import numpy as np

from edgekv.binding import library
from edgekv.binding.model import Model
from edgekv.options import Options

# Tensors that hold a layer's attention scores last before the softmax, with softcapping and without.
LAST_SCORES = ("kq_scaled_2", "kq")


class TensorHead(c.Structure):
    """The first fields of struct ggml_tensor."""

    _fields_ = (("type", c.c_int), ("buffer", c.c_void_p), ("ne", c.c_int64 * 4), ("nb", c.c_size_t * 4))


def masked_logits(path, tokens, visible, batches, n_wanted, *, layers, softcapped=False):
    """The logits (n_wanted, n_vocab) of the last n_wanted tokens, which are fed one by one after the `batches`.

    visible[l, g, t, j]: KV head g of the l-th of `layers` sees token j when token t is fed
    layers: by llama.cpp's number of a layer, which of the l it reads; others are left as they are
    batches: tokens that are fed at once, in order

    One thread computes: llama.cpp stops at every tensor that is watched, and several would wait more than work.
    """
    wanted = f"{LAST_SCORES[0 if softcapped else 1]}-"
    index = {f"{wanted}{il}": i for il, i in layers.items()}
    lib = library.load()
    lib.ggml_get_name.restype, lib.ggml_get_name.argtypes = c.c_char_p, [c.c_void_p]
    for copy in (lib.ggml_backend_tensor_get, lib.ggml_backend_tensor_set):  # it may lie on a device
        copy.restype, copy.argtypes = None, [c.c_void_p, c.c_void_p, c.c_size_t, c.c_size_t]
    n_fed, masked = 0, set()

    @c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_bool, c.c_void_p)
    def hide(tensor, ask, _):
        layer = index.get(lib.ggml_get_name(tensor).decode())
        if ask:
            return layer is not None
        n_cells, n_tokens, n_head, _ = c.cast(tensor, c.POINTER(TensorHead)).contents.ne
        scores = np.empty((n_head, n_tokens, n_cells), dtype=np.float32)
        lib.ggml_backend_tensor_get(tensor, scores.ctypes.data, 0, scores.nbytes)
        seen = visible[layer, :, n_fed : n_fed + n_tokens, :n_cells]
        n_known = seen.shape[-1]
        n_group = n_head // seen.shape[0]
        for h in range(n_head):
            scores[h, :, :n_known][~seen[h // n_group]] = -np.inf
        lib.ggml_backend_tensor_set(tensor, scores.ctypes.data, 0, scores.nbytes)
        masked.add(layer)
        return True

    options = Options(threads=1, block=max(batches))
    with Model(path, options) as model:
        llama = library.bindings()
        params = llama.llama_context_default_params()
        params.n_ctx = len(tokens)
        params.n_batch = params.n_ubatch = max(batches)
        params.n_seq_max = params.n_outputs_max = 1
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.swa_full = True
        params.cb_eval = c.cast(hide, type(params.cb_eval))
        handle = c.c_void_p()
        library.call("edgekv_context_new", model.handle, c.byref(params), None, c.byref(handle))
        try:
            found = []
            for n in [*batches, *(len(tokens) - sum(batches)) * [1]]:
                array = (llama.llama_token * n)(*tokens[n_fed : n_fed + n])
                assert llama.llama_decode(handle, llama.llama_batch_get_one(array, n)) == 0
                n_fed += n
                logits = c.cast(llama.llama_get_logits_ith(handle, -1), c.POINTER(c.c_float))
                found.append(np.ctypeslib.as_array(logits, (model.n_vocab,)).copy())
        finally:
            llama.llama_free(handle)
    assert masked == set(index.values())
    return np.array(found[-n_wanted:])
