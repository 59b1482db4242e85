"""A tiny model whose heads differ in how many cells they look at, and in how alike their keys are."""

from __future__ import annotations

import gguf
import numpy as np

from edgekv.testing.models.tiny import make_tiny

UNEVEN = {"n_layer": 3, "n_embd": 128, "n_head": 6, "n_head_kv": 3, "head_dim": 64}
# times that the keys of the heads are lengthened, layer by layer: the longer, the fewer cells a query looks at
LENGTHS = [(0.3, 6, 4), (8, 3, 5), (4, 6, 3)]
# how long the part is that all keys of a head share, over the rest: the longer, the less keydiff tells its cells apart
SHARED_PARTS = [(0, 2, 4), (2, 4, 0), (4, 0, 2)]


def make_uneven(path, n_ctx_train=1024):
    make_tiny(path, **UNEVEN, n_ctx_train=n_ctx_train)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path, "r+").tensors}
    tensors["token_embd.weight"][:] += tensors["token_embd.weight"].std()  # what all tokens share
    for layer, (lengths, shared) in enumerate(zip(LENGTHS, SHARED_PARTS, strict=True)):
        rows = tensors[f"blk.{layer}.attn_k.weight"].reshape(UNEVEN["n_head_kv"], UNEVEN["head_dim"], -1)
        rows[:, -1] += rows.std() * np.array(shared, dtype=np.float32)[:, None]  # RoPE hardly turns the last dimension
        rows *= np.array(lengths, dtype=np.float32)[:, None, None]
    return path
