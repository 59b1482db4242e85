"""The transformer in float64 numpy, written to be read: what every runtime result is compared with.

One layer, for the states x (n_tokens, n_embd):

    a = rms(x) W_Q, rms(x) W_K, rms(x) W_V -> heads -> [per-head rms] -> RoPE on Q and K -> attention -> W_O
    x = x + a
    x = x + (act(rms(x) W_gate) * (rms(x) W_up)) W_down

Layers of deci may lack attention, or have a matrix W_O alone in its place: a = rms(x) W_O. Others lack the feed-forward
part; llama.cpp leaves such a layer out altogether.

Query head h reads KV head g = h // (n_head / n_head_kv). `visible[l, g, t, j]` says whether query t may attend to
key j in layer l and KV head g, so any history of evictions is one boolean array. Nothing is cached, blocked or fused.

The kernels of llama.cpp differ from these formulas in what remains after K and V were rounded alike:

    f16, 64 or more queries at once      float32 sums
    f16, fewer queries (decode, tails)   queries are rounded to f16, and V is summed in float16, cell by cell
    q8_0, q4_0                           queries are rounded to q8_0. A value on a rounding boundary may fall on the
                                         other side, and the layers above amplify it: rare, and not small
    F16, Q8_0, Q4_0 weights              activations are rounded to f16 or q8_0 too: compare on F32 weights

edgekv's own attention, which the host uses, rounds no queries and sums in float32. `rounded_from` follows ggml's
kernels in the second and third line, but for the order of the cells.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from gguf_files import gguf_reader
from reference_quant import KV_TYPES, round_f16, stored_key, stored_value

# Pairs of dimensions that RoPE turns together: (0, 1), (2, 3), ... or (0, n/2), (1, n/2 + 1), ...
ROPE_PAIRS = {"llama": "norm", "qwen2": "neox", "qwen3": "neox", "gemma": "neox", "deci": "norm"}


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Sizes and constants of a model. head_dim is key_length; value_length may differ."""

    architecture: str
    n_layer: int
    n_embd: int
    n_head: int  # heads of the layer that has most
    n_head_kv: int
    head_dim: int
    head_dim_v: int
    n_rot: int  # leading dimensions of a head that RoPE turns
    rope_base: float
    rms_eps: float

    @property
    def rope_pairs(self):
        """ "norm" (interleaved) or "neox" (halves)."""
        return ROPE_PAIRS[self.architecture]

    @property
    def embedding_scale(self):
        """Gemma multiplies its embeddings by sqrt(n_embd)."""
        return np.sqrt(self.n_embd) if self.architecture == "gemma" else 1.0

    @property
    def activation(self):
        """The gate's activation."""
        return gelu if self.architecture == "gemma" else silu


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, float64; a matrix is (n_out, n_in), so it is applied as x @ W.T."""

    attn_norm: np.ndarray | None = None  # (n_embd,); parts may be missing in deci alone
    wq: np.ndarray | None = None  # (n_head * head_dim, n_embd)
    wk: np.ndarray | None = None  # (n_head_kv * head_dim, n_embd)
    wv: np.ndarray | None = None  # (n_head_kv * head_dim_v, n_embd)
    wo: np.ndarray | None = None  # (n_embd, n_head * head_dim_v), or (n_embd, n_embd) in place of attention
    ffn_norm: np.ndarray | None = None  # (n_embd,)
    w_gate: np.ndarray | None = None  # (n_ff, n_embd)
    w_up: np.ndarray | None = None  # (n_ff, n_embd)
    w_down: np.ndarray | None = None  # (n_embd, n_ff)
    bq: np.ndarray | None = None  # biases: qwen2
    bk: np.ndarray | None = None
    bv: np.ndarray | None = None
    q_norm: np.ndarray | None = None  # (head_dim,), per-head norms: qwen3
    k_norm: np.ndarray | None = None


# Layer field -> tensor name within "blk.{il}."
LAYER_TENSORS = {
    "attn_norm": "attn_norm.weight",
    "wq": "attn_q.weight",
    "wk": "attn_k.weight",
    "wv": "attn_v.weight",
    "wo": "attn_output.weight",
    "ffn_norm": "ffn_norm.weight",
    "w_gate": "ffn_gate.weight",
    "w_up": "ffn_up.weight",
    "w_down": "ffn_down.weight",
}
OPTIONAL_LAYER_TENSORS = {
    "bq": "attn_q.bias",
    "bk": "attn_k.bias",
    "bv": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
}


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """A dense decoder-only model: llama, qwen2, qwen3, gemma (v1) or deci."""

    hparams: Hyperparameters
    layers: tuple[Layer, ...]
    embedding: np.ndarray  # (n_vocab, n_embd)
    output_norm: np.ndarray  # (n_embd,)
    output: np.ndarray  # (n_vocab, n_embd); the embedding itself where the two are tied
    rope_factors: np.ndarray | None = None  # (n_rot / 2,), divides each pair's angle (Llama 3)

    @classmethod
    def from_gguf(cls, path):
        """Read and de-quantise every weight. ValueError for what the formulas here do not cover."""
        from gguf.quants import dequantize

        reader = gguf_reader(path)
        hparams = _read_hparams(reader)
        tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
        layers = []
        for il in range(hparams.n_layer):
            read = tensors.get if hparams.architecture == "deci" else tensors.__getitem__
            weights = {field: read(f"blk.{il}.{name}") for field, name in LAYER_TENSORS.items()}
            weights |= {field: tensors.get(f"blk.{il}.{name}") for field, name in OPTIONAL_LAYER_TENSORS.items()}
            layers.append(Layer(**weights))
        embedding = tensors["token_embd.weight"]
        return cls(
            hparams=hparams,
            layers=tuple(layers),
            embedding=embedding,
            output_norm=tensors["output_norm.weight"],
            output=tensors.get("output.weight", embedding),
            rope_factors=tensors.get("rope_freqs.weight"),
        )

    def logits(self, tokens, *, visible=None, kv_type="f16", positions=None, moves=(), rounded_from=None):
        """tokens (n_tokens,) -> logits (n_tokens, n_vocab) float64.

        visible:   (n_layer, n_head_kv, n_tokens, n_tokens) bool, [l, g, t, j]: query t may read key j, of the layers
                   that have keys, and as many heads as the widest of them;
                   the causal mask j <= t always holds too. None: the causal mask alone. A query that
                   may read nothing gets zeros from that head.
        kv_type:   how keys and values are rounded, one of KV_TYPES; "exact" is not rounded at all.
        positions: (n_tokens,) RoPE positions, by default 0, 1, 2, ... The causal mask goes by index.
        moves:     pairs (n, by), ascending: before token n is fed, stored keys are turned by so many positions,
                   by (n_layer, n_head_kv, n_tokens) int, and rounded once more.
        rounded_from: the first token whose attention is rounded as ggml's own rounds it; None: none is. With f16 it is
                   one that was fed with few others.
        """
        hp = self.hparams
        tokens = np.asarray(tokens)
        n_tokens = len(tokens)
        if kv_type not in KV_TYPES:
            raise ValueError(f"kv_type={kv_type!r} is not one of {KV_TYPES}")
        positions = np.arange(n_tokens) if positions is None else np.asarray(positions)
        with_keys = [layer for layer in self.layers if layer.wk is not None]
        mask = np.broadcast_to(np.tri(n_tokens, dtype=bool), (len(with_keys), hp.n_head_kv, n_tokens, n_tokens))
        if visible is not None:
            visible = np.asarray(visible, dtype=bool)
            if visible.shape != mask.shape:
                raise ValueError(f"visible has shape {visible.shape}, but this model and prompt need {mask.shape}")
            mask = mask & visible

        x = self.embedding[tokens] * hp.embedding_scale  # (n_tokens, n_embd)
        for layer in self.layers:
            if layer.w_gate is None:
                continue
            if layer.wo is not None:
                out = rms_norm(x, layer.attn_norm, hp.rms_eps)
            if layer.wk is not None:
                il = next(i for i, other in enumerate(with_keys) if other is layer)
                q, k, v = self.heads(layer, out, positions)
                k, v = stored_key(k, kv_type), stored_value(v, kv_type)
                if rounded_from is not None:
                    q[rounded_from:] = stored_key(q[rounded_from:], "f16" if kv_type == "f16" else "q8_0")
                starts = [0, *(n for n, _ in moves), n_tokens]
                out = np.empty((n_tokens, q.shape[1], hp.head_dim_v))
                for i, (begin, end) in enumerate(itertools.pairwise(starts)):
                    if i > 0:
                        k = self.moved(k, moves[i - 1][1][il], kv_type)
                    out[begin:end] = attention(q[begin:end], k, v, mask[il][:, begin:end])
                    if kv_type == "f16" and rounded_from is not None and rounded_from < end:
                        few = slice(max(begin, rounded_from), end)
                        out[few] = attention(q[few], k, v, mask[il][:, few], weighted_sum=sum_in_f16)
            if layer.wo is not None:
                x = x + out.reshape(n_tokens, -1) @ layer.wo.T
            h = rms_norm(x, layer.ffn_norm, hp.rms_eps)
            x = x + (hp.activation(h @ layer.w_gate.T) * (h @ layer.w_up.T)) @ layer.w_down.T
        return rms_norm(x, self.output_norm, hp.rms_eps) @ self.output.T

    def heads(self, layer, h, positions):
        """h (n_tokens, n_embd), normed -> q (n_tokens, n_head, head_dim), k (n_tokens, n_head_kv, head_dim),
        v (n_tokens, n_head_kv, head_dim_v); q and k after RoPE."""
        hp = self.hparams
        q = _linear(h, layer.wq, layer.bq).reshape(len(h), -1, hp.head_dim)
        k = _linear(h, layer.wk, layer.bk).reshape(len(h), -1, hp.head_dim)
        v = _linear(h, layer.wv, layer.bv).reshape(len(h), -1, hp.head_dim_v)
        if layer.q_norm is not None:
            q = rms_norm(q, layer.q_norm, hp.rms_eps)
        if layer.k_norm is not None:
            k = rms_norm(k, layer.k_norm, hp.rms_eps)
        angles = rope_angles(positions, hp.n_rot, hp.rope_base, self.rope_factors)
        return rope(q, angles, hp.rope_pairs), rope(k, angles, hp.rope_pairs), v

    def moved(self, k, by, kv_type):
        """Stored keys k (n_tokens, n_head_kv, head_dim), turned by so many positions, by (n_head_kv, n_tokens)."""
        hp = self.hparams
        moved = k.copy()
        for g, positions in enumerate(by[: k.shape[1]]):
            angles = rope_angles(positions, hp.n_rot, hp.rope_base, self.rope_factors)
            turned = stored_key(rope(k[:, g : g + 1], angles, hp.rope_pairs), kv_type)
            moved[:, g] = np.where(positions[:, None] != 0, turned[:, 0], k[:, g])
        return moved


def rms_norm(x, weight, eps):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    """x / (1 + exp(-x))."""
    return x / (1 + np.exp(-x))


def gelu(x):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rope_angles(positions, n_rot, base, factors=None):
    """Angle of pair i at position p: p * base^(-2 i / n_rot) / factors[i] -> (n_tokens, n_rot / 2)."""
    frequency = float(base) ** (-2 * np.arange(n_rot // 2) / n_rot)
    return np.outer(positions, frequency if factors is None else frequency / factors)


def rope(x, angles, pairs):
    """Turn each pair (a, b) of x (n_tokens, n_head, head_dim) to (a cos - b sin, a sin + b cos).

    The first n_rot = 2 * angles.shape[1] dimensions turn; the others pass.
    """
    n_rot = 2 * angles.shape[1]
    first, second = {
        "norm": (slice(0, n_rot, 2), slice(1, n_rot, 2)),
        "neox": (slice(0, n_rot // 2), slice(n_rot // 2, n_rot)),
    }[pairs]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    a, b = x[..., first], x[..., second]
    turned = x.copy()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = a * sin + b * cos
    return turned


def attention(q, k, v, mask, weighted_sum=None):
    """out[t, h] = sum_j softmax_j(<q[t, h], k[j, g]> / sqrt(head_dim)) v[j, g]   over j with mask[g, t, j].

    q (n_tokens, n_head, head_dim), k (n_tokens, n_head_kv, head_dim), v (n_tokens, n_head_kv, head_dim_v),
    mask (n_head_kv, n_tokens, n_tokens) bool -> (n_tokens, n_head, head_dim_v); q and mask may be of some tokens only
    """
    n_head, n_head_kv = q.shape[1], k.shape[1]
    out = np.empty((len(q), n_head, v.shape[2]))
    for h in range(n_head):
        g = h // (n_head // n_head_kv)
        scores = q[:, h] @ k[:, g].T / np.sqrt(q.shape[2])  # (n_tokens, n_tokens)
        out[:, h] = (weighted_sum or softmax_sum)(scores, mask[g], v[:, g])
    return out


def softmax_sum(scores, mask, v):
    """scores, mask (n_tokens, n_keys), v (n_keys, dim) -> (n_tokens, dim)."""
    return masked_softmax(scores, mask) @ v


def sum_in_f16(scores, mask, v):
    """Sum as `softmax_sum`, key by key, rounded to f16 each time: times exp(old - new) at a new largest score,
    then plus v[j] exp(score - largest)."""
    out = np.zeros((len(scores), v.shape[1]))
    top, total = np.full(len(scores), -np.inf), np.zeros(len(scores))
    for j in range(len(v)):
        seen, score = mask[:, j], scores[:, j]
        above = seen & (score > top)
        shrink = np.where(above, np.exp(top - np.where(above, score, np.inf)), 1.0)
        top = np.where(above, score, top)
        weight = np.where(seen, np.exp(score - np.where(seen, top, np.inf)), 0.0)
        out[above] = round_f16(out[above] * shrink[above, None])
        out[seen] = round_f16(out[seen] + v[j] * weight[seen, None])
        total = total * shrink + weight
    return out / total[:, None]


def masked_softmax(scores, mask):
    """Softmax over the last axis where mask holds, 0 elsewhere; a row with nothing to read stays 0."""
    scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def _linear(x, weight, bias):
    y = x @ weight.T
    return y if bias is None else y + bias


def _read_hparams(reader):
    def read(key, default=None):
        field = reader.get_field(key)
        if field is None and default is None:
            raise ValueError(f"the file has no {key}")
        return default if field is None else field.contents()

    arch = read("general.architecture")
    if arch not in ROPE_PAIRS:
        raise ValueError(f"architecture {arch!r} is not one of {tuple(ROPE_PAIRS)}")
    scaling = read(f"{arch}.rope.scaling.type", "none")
    if scaling != "none":
        raise ValueError(f"rope scaling {scaling!r} is not covered; use a model without it")
    n_embd, n_head = read(f"{arch}.embedding_length"), read(f"{arch}.attention.head_count")
    n_head_kv = read(f"{arch}.attention.head_count_kv", n_head)
    n_head, n_head_kv = (max(n) if isinstance(n, list) else n for n in (n_head, n_head_kv))
    head_dim = read(f"{arch}.attention.key_length", n_embd // n_head)
    return Hyperparameters(
        architecture=arch,
        n_layer=read(f"{arch}.block_count"),
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        head_dim_v=read(f"{arch}.attention.value_length", n_embd // n_head),
        n_rot=read(f"{arch}.rope.dimension_count", head_dim),
        rope_base=read(f"{arch}.rope.freq_base", 10000.0),
        rms_eps=read(f"{arch}.attention.layer_norm_rms_epsilon"),
    )
