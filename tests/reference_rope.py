"""RoPE in float64: how far each pair turns per position, under every scaling, and stored keys turned elsewhere.

    linear    w / factor
    yarn      a mixture of w / factor and w, by how many turns a pair makes in the original context (arXiv:2309.00071)
    longrope  w / factors, each pair's own (arXiv:2402.13753); Llama 3 writes such factors as well
    M-RoPE    w in pairs of the sections of time, height and width, whose positions are a token's place in the text;
              0 in the others, whose position of text is always 0 (arXiv:2409.12191)

YaRN and LongRoPE also scale queries and keys; a turn keeps that scale, so it is no matter here.
"""

from __future__ import annotations

import numpy as np
from gguf_files import gguf_reader
from reference_quant import rotate, round_f16, round_q4_0, round_q8_0
from reference_transformer import rope, rope_angles

ROUNDINGS = {"f32": lambda x: x.astype(np.float32), "f16": round_f16, "q8_0": round_q8_0, "q4_0": round_q4_0}
INTERLEAVED = ("qwen35", "qwen3vl")
BETA_FAST, BETA_SLOW = 32, 1  # turns in the original context: above, YaRN leaves a pair alone; below, it slows it fully


def yarn_frequencies(w, base, factor, n_ctx_original):
    """w (n_rot / 2,) radians per position -> what YaRN makes of them.

    From pair `low` to pair `high`, whole numbers as in llama.cpp, the slow frequency evenly replaces the own one.
    """
    n_rot = 2 * len(w)

    def pair_that_turns(times):
        return n_rot * np.log(n_ctx_original / (times * 2 * np.pi)) / (2 * np.log(base))

    low = max(0, np.floor(pair_that_turns(BETA_FAST)))
    high = min(n_rot - 1, np.ceil(pair_that_turns(BETA_SLOW)))
    slow = np.clip((np.arange(len(w)) - low) / max(1e-3, high - low), 0, 1)
    return slow * w / factor + (1 - slow) * w


def turning(sections, n_pairs, *, interleaved):
    """Return whether each pair is in a section of time, height or width, (n_pairs,); sections of these and a fourth.

    interleaved: pairs 0, 3, 6, ... are time's, 1, 4, ... height's and 2, 5, ... width's, while these last
    """
    pairs = np.arange(n_pairs) % sum(sections)
    if interleaved:
        return pairs < 3 * np.array(sections)[pairs % 3]
    return pairs < sum(sections[:3])


def frequencies_of(path):
    """Radians per position of every pair, (n_rot / 2,), of the model at `path`, beyond its original context."""
    reader = gguf_reader(path)

    def read(key, default=None):
        field = reader.get_field(key)
        return default if field is None else field.contents()

    arch = read("general.architecture")
    n_embd, n_head = read(f"{arch}.embedding_length"), read(f"{arch}.attention.head_count")
    head_dim = read(f"{arch}.attention.key_length", n_embd // n_head)
    base, scaling = read(f"{arch}.rope.freq_base", 1e4), read(f"{arch}.rope.scaling.type", "linear")
    factor = read(f"{arch}.rope.scaling.factor", 1.0)
    tensors = {tensor.name: tensor.data.astype(np.float64) for tensor in reader.tensors if "rope" in tensor.name}
    factors = tensors.get("rope_factors_long.weight" if scaling == "longrope" else "rope_freqs.weight")

    (w,) = rope_angles([1], read(f"{arch}.rope.dimension_count", head_dim), base, factors)
    sections = read(f"{arch}.rope.dimension_sections")
    if sections is not None:
        w = w * turning(sections, len(w), interleaved=arch in INTERLEAVED)
    if scaling == "yarn":
        return yarn_frequencies(w, base, factor, read(f"{arch}.rope.scaling.original_context_length"))
    return w / factor if scaling == "linear" else w


def rope_at(keys, positions, w, pairs, first=0):
    """keys (n, head_dim) as they are at position 0 -> at `positions` (n,); w (n_rot / 2,), pairs "norm" or "neox".

    first: element of a key that those which turn begin at
    """
    turned = rope(keys[:, None, first:], np.outer(positions, w), pairs)[:, 0]
    return np.concatenate([keys[:, :first], turned], axis=1)


def turn_stored(rows, deltas, w, pairs, kv_type, rotation, first=0):
    """Return the stored rows (n, head_dim) after their keys moved by `deltas` (n,) positions."""
    turned = rotate(rope_at(rotate(rows, rotation), deltas, w, pairs, first), rotation)
    return np.where(np.asarray(deltas)[:, None] == 0, rows, ROUNDINGS[kv_type](turned))
