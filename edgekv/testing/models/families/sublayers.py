"""Parts of layers that families share. `at` is the layer's prefix, as in "blk.3."."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..tensors import BIAS_SPREAD, QUERY_KEY_GAIN, RESIDUAL_GAIN, TensorPlan, matrix, norm
from .family import Sizes, Value

# Gain of a router. With a small one, the last digit of a sum would choose between two experts.
_ROUTER_GAIN = 6.0
# Gain of the experts' output, which is small for the same reason; the rest of a model is continuous.
_EXPERT_GAIN = 0.5


def norms(at: str, sizes: Sizes, *names: str, mean: float = 1.0) -> Iterator[TensorPlan]:
    """Norms over the embedding."""
    for name in names:
        yield norm(f"{at}{name}", sizes.n_embd, mean)


def attention(
    at: str,
    sizes: Sizes,
    *,
    head_norms: float = 0.0,
    gated: bool = False,
    fused: bool = False,
    biases: bool = False,
    has_keys: bool = True,
    residual_gain: float = RESIDUAL_GAIN,
) -> Iterator[TensorPlan]:
    """Queries, keys, values and the output matrix.

    head_norms  mean weight of the norms over a head's queries and keys, which then bring the gain; 0 = no norms
    gated       every query head comes with a gate of its size
    fused       one matrix for queries, keys and values
    has_keys    False: the layer attends with the rows of an earlier one
    """
    n_embd_q, n_embd_kv = sizes.n_head * sizes.head_dim, sizes.n_head_kv * sizes.head_dim
    gain = 1.0 if head_norms else QUERY_KEY_GAIN
    if fused:
        yield matrix(f"{at}attn_qkv", n_embd_q + 2 * n_embd_kv, sizes.n_embd, gain)
    else:
        yield matrix(f"{at}attn_q", 2 * n_embd_q if gated else n_embd_q, sizes.n_embd, gain)
    if has_keys and not fused:
        yield matrix(f"{at}attn_k", n_embd_kv, sizes.n_embd, gain)
        yield matrix(f"{at}attn_v", n_embd_kv, sizes.n_embd, 1.0)
    if biases:
        for name, length in (("attn_q", n_embd_q), ("attn_k", n_embd_kv), ("attn_v", n_embd_kv)):
            yield TensorPlan(f"{at}{name}.bias", (length,), spread=BIAS_SPREAD)
    if head_norms:
        yield norm(f"{at}attn_q_norm", sizes.head_dim, head_norms)
    if head_norms and has_keys:
        yield norm(f"{at}attn_k_norm", sizes.head_dim, head_norms)
    yield matrix(f"{at}attn_output", sizes.n_embd, n_embd_q, residual_gain)


def feed_forward(
    at: str, sizes: Sizes, *, n_ff: int | None = None, suffix: str = "", gated: bool = True, fused: bool = False
) -> Iterator[TensorPlan]:
    """A feed-forward part, by default gated; `suffix` "_shexp" is that of a shared expert."""
    width = sizes.n_ff if n_ff is None else n_ff
    if gated and not fused:
        yield matrix(f"{at}ffn_gate{suffix}", width, sizes.n_embd, 1.0)
    yield matrix(f"{at}ffn_up{suffix}", 2 * width if fused else width, sizes.n_embd, 1.0)
    yield matrix(f"{at}ffn_down{suffix}", sizes.n_embd, width, RESIDUAL_GAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Experts of a layer: `n_used` of `n` are chosen for a token, and `n_shared` always run."""

    n: int = 4
    n_used: int = 2
    n_ff: int = 96
    n_shared: int = 0

    def keys(self) -> dict[str, Value]:
        """Return the metadata of these experts."""
        shared: dict[str, Value] = {"expert_shared_count": self.n_shared} if self.n_shared else {}
        return {
            "expert_count": self.n,
            "expert_used_count": self.n_used,
            "expert_feed_forward_length": self.n_ff,
        } | shared


def experts(
    at: str, sizes: Sizes, e: Experts, *, biases: bool = False, choice_biases: bool = False
) -> Iterator[TensorPlan]:
    """The router and the matrices of all experts; `choice_biases` move which are chosen, and not their weights."""
    yield matrix(f"{at}ffn_gate_inp", e.n, sizes.n_embd, _ROUTER_GAIN)
    yield matrix(f"{at}ffn_gate_exps", e.n_ff, sizes.n_embd, 1.0, e.n)
    yield matrix(f"{at}ffn_up_exps", e.n_ff, sizes.n_embd, 1.0, e.n)
    yield matrix(f"{at}ffn_down_exps", sizes.n_embd, e.n_ff, _EXPERT_GAIN, e.n)
    if choice_biases:
        yield TensorPlan(f"{at}exp_probs_b.bias", (e.n,), spread=0.1)
    if biases:
        yield TensorPlan(f"{at}ffn_gate_inp.bias", (e.n,), spread=BIAS_SPREAD)
        for name, length in (("gate", e.n_ff), ("up", e.n_ff), ("down", sizes.n_embd)):
            yield TensorPlan(f"{at}ffn_{name}_exps.bias", (e.n, length), spread=BIAS_SPREAD)
    if e.n_shared:
        yield from feed_forward(at, sizes, n_ff=e.n_ff * e.n_shared, suffix="_shexp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """The sizes of a state-space layer, by the names of its metadata."""

    inner_size: int = 256
    state_size: int = 32
    time_step_rank: int = 8
    group_count: int = 2
    conv_kernel: int = 4

    def keys(self) -> dict[str, Value]:
        """Return the metadata of these sizes; Mamba 1 has no groups."""
        return {
            "ssm.conv_kernel": self.conv_kernel,
            "ssm.inner_size": self.inner_size,
            "ssm.state_size": self.state_size,
            "ssm.time_step_rank": self.time_step_rank,
            "ssm.group_count": self.group_count,
        }


# Bias before the softplus: a state loses a 150th of itself a token, so it remembers hundreds of tokens.
_TIME_STEP = -5.0


def mamba1(at: str, sizes: Sizes, m: Mamba) -> Iterator[TensorPlan]:
    """A Mamba layer with norms over its time step, input and output, as Jamba's."""
    yield matrix(f"{at}ssm_in", 2 * m.inner_size, sizes.n_embd, 1.0)
    yield from _convolution(at, m, m.inner_size)
    yield matrix(f"{at}ssm_x", m.time_step_rank + 2 * m.state_size, m.inner_size, 1.0)
    yield norm(f"{at}ssm_dt_norm", m.time_step_rank)
    yield norm(f"{at}ssm_b_norm", m.state_size)
    yield norm(f"{at}ssm_c_norm", m.state_size)
    yield TensorPlan(f"{at}ssm_dt.weight", (m.inner_size, m.time_step_rank), spread=0.2)
    yield TensorPlan(f"{at}ssm_dt.bias", (m.inner_size,), mean=_TIME_STEP, spread=1.0)
    yield TensorPlan(f"{at}ssm_a", (m.inner_size, m.state_size), mean=-1.0, spread=0.2)
    yield TensorPlan(f"{at}ssm_d", (m.inner_size,), mean=1.0, spread=0.1)
    yield matrix(f"{at}ssm_out", sizes.n_embd, m.inner_size, RESIDUAL_GAIN)


def mamba2(at: str, sizes: Sizes, m: Mamba) -> Iterator[TensorPlan]:
    """A Mamba 2 layer: `time_step_rank` heads, which share inputs and outputs of the state in groups."""
    n_conv = m.inner_size + 2 * m.group_count * m.state_size
    yield matrix(f"{at}ssm_in", m.inner_size + n_conv + m.time_step_rank, sizes.n_embd, 1.0)
    yield from _convolution(at, m, n_conv)
    yield TensorPlan(f"{at}ssm_dt.bias", (m.time_step_rank,), mean=_TIME_STEP, spread=1.0)
    yield TensorPlan(f"{at}ssm_a", (m.time_step_rank, 1), mean=-1.0, spread=0.2)
    yield TensorPlan(f"{at}ssm_d", (m.time_step_rank, 1), mean=1.0, spread=0.1)
    yield TensorPlan(f"{at}ssm_norm.weight", (m.group_count, m.inner_size // m.group_count), mean=1.0, spread=0.1)
    yield matrix(f"{at}ssm_out", sizes.n_embd, m.inner_size, RESIDUAL_GAIN)


def _convolution(at: str, m: Mamba, n_channels: int) -> Iterator[TensorPlan]:
    yield TensorPlan(f"{at}ssm_conv1d.weight", (n_channels, m.conv_kernel), spread=0.5)
    yield TensorPlan(f"{at}ssm_conv1d.bias", (n_channels,), spread=0.1)


def delta_net(at: str, sizes: Sizes, m: Mamba) -> Iterator[TensorPlan]:
    """A gated delta net: `group_count` heads of queries and keys, `time_step_rank` of values, of `state_size` each.

    The matrices of its step and decay are left to the family: two in Qwen3.5, one in Qwen3-Next.
    """
    n_keys, n_values = m.group_count * m.state_size, m.time_step_rank * m.state_size
    yield matrix(f"{at}attn_qkv", 2 * n_keys + n_values, sizes.n_embd, 1.0)
    yield matrix(f"{at}attn_gate", n_values, sizes.n_embd, 1.0)
    yield TensorPlan(f"{at}ssm_conv1d.weight", (2 * n_keys + n_values, m.conv_kernel), spread=0.5)
    yield TensorPlan(f"{at}ssm_dt.bias", (m.time_step_rank,), mean=_TIME_STEP, spread=1.0)
    yield TensorPlan(f"{at}ssm_a", (m.time_step_rank,), mean=-1.0, spread=0.2)
    yield norm(f"{at}ssm_norm", m.state_size)
    yield matrix(f"{at}ssm_out", sizes.n_embd, n_values, RESIDUAL_GAIN)


def short_conv(at: str, sizes: Sizes, n_kernel: int) -> Iterator[TensorPlan]:
    """A gated convolution over the newest `n_kernel` tokens, as LFM2's."""
    yield TensorPlan(f"{at}shortconv.conv.weight", (sizes.n_embd, n_kernel), spread=0.6)
    yield matrix(f"{at}shortconv.in_proj", 3 * sizes.n_embd, sizes.n_embd, 1.0)
    yield matrix(f"{at}shortconv.out_proj", sizes.n_embd, sizes.n_embd, RESIDUAL_GAIN)
