"""Dimensions of a synthetic model."""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.errors import ConfigError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "deci")
QUANTIZATIONS = ("F32", "F16", "Q8_0", "Q4_0")
ROPE_SCALINGS = ("linear", "yarn", "longrope")

# Values in a block of Q8_0 and Q4_0; every row is a whole number of blocks, so that any quantization fits any spec.
BLOCK_VALUES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Scaling of rotary positions beyond the `n_ctx_original` ones of a first training.

    kind     one of ROPE_SCALINGS: "linear" slows all frequencies by `factor`, "yarn" the low ones, and "longrope"
             divides each by its own of `factors`
    factors  head_dim / 2 values for longrope, whose short ones are then 1; () otherwise
    """

    kind: str
    n_ctx_original: int
    factor: float = 1.0
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ROPE_SCALINGS:
            raise ConfigError(f"rope scaling {self.kind!r} is unknown; choose one of {ROPE_SCALINGS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The dimensions of a transformer with gated feed-forward layers and rotary positions.

    head_dim      values a head; None means n_embd / n_head, and the file then does not name it
    rope_factors  divisors of the rotary frequencies, head_dim / 2 values; () for none
    rope_scaling  further scaling of these; llama.cpp reads no rope_factors of a longrope model
    tied          the output matrix is the embedding
    layer_heads   deci: (n_head, n_head_kv) of each layer in place of the model's, (n_head, 0) for a matrix in place of
                  attention, (0, 0) for neither; () if all are alike
    layer_ff      deci: n_ff of each layer, 0 for none; () if all are alike
    """

    name: str
    architecture: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    vocab_size: int
    n_ctx_train: int
    head_dim: int | None = None
    rope_base: float = 10_000.0
    rope_factors: tuple[float, ...] = ()
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = 1e-5
    tied: bool = False
    layer_heads: tuple[tuple[int, int], ...] = ()
    layer_ff: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ConfigError(f"architecture={self.architecture!r} is unknown; choose one of {ARCHITECTURES}")
        for name in ("n_layer", "n_embd", "n_head", "n_head_kv", "n_ff", "vocab_size", "n_ctx_train"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}, but must be at least 1")
        if self.n_head % self.n_head_kv:
            raise ConfigError(f"n_head_kv={self.n_head_kv} must divide n_head={self.n_head}")
        self._check_layers()
        if self.head_dim is None and self.n_embd % self.n_head:
            raise ConfigError(f"n_embd={self.n_embd} is not a multiple of n_head={self.n_head}; set head_dim")
        if self.n_embd_head < 2 or self.n_embd_head % 2:
            raise ConfigError(f"a head has {self.n_embd_head} values, but rotary positions need an even number")
        for name, row_length in (("n_embd", self.n_embd), ("n_ff", self.n_ff), ("n_head * head_dim", self.n_embd_q)):
            if row_length % BLOCK_VALUES:
                raise ConfigError(f"{name} is {row_length}, but must be a multiple of {BLOCK_VALUES}")
        if len(self.rope_factors) not in (0, self.n_embd_head // 2):
            raise ConfigError(f"rope_factors has {len(self.rope_factors)} values, but needs {self.n_embd_head // 2}")
        if len(self.longrope_factors) not in (0, self.n_embd_head // 2):
            raise ConfigError(f"longrope has {len(self.longrope_factors)} factors, but needs {self.n_embd_head // 2}")
        if self.architecture == "qwen2" and self.n_embd_q != self.n_embd:
            raise ConfigError(
                f"n_head * head_dim is {self.n_embd_q}, but llama.cpp loads qwen2 only where it is "
                f"n_embd={self.n_embd}; set n_embd={self.n_embd_q}"
            )
        if self.architecture == "gemma" and not self.tied:
            raise ConfigError("tied=False, but the output matrix of gemma is its embedding; set tied=True")

    def _check_layers(self) -> None:
        for name, given in (("layer_heads", self.layer_heads), ("layer_ff", self.layer_ff)):
            if given and self.architecture != "deci":
                raise ConfigError(f"{name} is given, but only the layers of deci differ; set architecture='deci'")
            if len(given) not in (0, self.n_layer):
                raise ConfigError(f"{name} has {len(given)} elements, but there are n_layer={self.n_layer}")
        for n_head, n_head_kv in self.layer_heads:
            if min(n_head, n_head_kv) < 0 or (n_head_kv and (not n_head or n_head % n_head_kv)):
                raise ConfigError(f"layer_heads has {n_head_kv} KV heads, which must divide its {n_head} heads")
            if n_head * self.n_embd_head % BLOCK_VALUES:
                raise ConfigError(
                    f"{n_head} heads of {self.n_embd_head} values are no multiple of {BLOCK_VALUES}; change layer_heads"
                )
        for n_ff in self.layer_ff:
            if n_ff < 0 or n_ff % BLOCK_VALUES:
                raise ConfigError(f"layer_ff has {n_ff}, but must be 0 or a multiple of {BLOCK_VALUES}")

    def heads(self, layer: int) -> tuple[int, int]:
        """Query and KV heads of a layer."""
        return self.layer_heads[layer] if self.layer_heads else (self.n_head, self.n_head_kv)

    def ff(self, layer: int) -> int:
        """Width of the feed-forward part of a layer; 0 if it has none."""
        return self.layer_ff[layer] if self.layer_ff else self.n_ff

    @property
    def longrope_factors(self) -> tuple[float, ...]:
        """Return the factors of the scaling; () if there are none."""
        return () if self.rope_scaling is None else self.rope_scaling.factors

    @property
    def n_embd_head(self) -> int:
        """Values a head."""
        return self.n_embd // self.n_head if self.head_dim is None else self.head_dim

    @property
    def n_embd_q(self) -> int:
        """Values of all query heads of a layer, if all layers are alike."""
        return self.n_embd_head * self.n_head
