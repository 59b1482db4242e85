"""Well-known small instruct models, and the dimensions that a plan needs, so that nothing is downloaded for one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Sizes of a byte-pair tokenizer. pre: llama.cpp's name of how it cuts texts"""

    pre: str
    n_tokens: int
    n_merges: int


@dataclass(frozen=True, slots=True)
class SuggestedModel:
    """A model on the hub, and its dimensions.

    parameters     in millions
    quantization   of the file: "Q8_0", or "Q4_K_M", which has some matrices in Q6_K
    licence        as its publisher names it
    repo           of the hub, OWNER/MODEL
    file_name      the file in the repository
    tied           the output matrix is that of the embeddings
    """

    family: str
    parameters: int
    quantization: str
    licence: str
    repo: str
    file_name: str
    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ctx_train: int
    tokenizer: Tokenizer
    rope_base: float
    tied: bool = True

    @property
    def name(self) -> str:
        """Name for `edgekv pull`."""
        return f"{self.repo}:{self.quantization}"


_SMOLLM = Tokenizer("smollm", 49_152, 48_900)
_LLAMA3 = Tokenizer("llama-bpe", 128_256, 280_147)
_QWEN = Tokenizer("qwen2", 151_936, 151_387)
_LLAMA_LICENCE, _APACHE = "Llama 3.2 Community", "Apache-2.0"

# smallest first
SUGGESTED = (
    SuggestedModel(
        family="SmolLM2",
        parameters=360,
        quantization="Q8_0",
        licence=_APACHE,
        repo="HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
        file_name="smollm2-360m-instruct-q8_0.gguf",
        architecture="llama",
        n_layer=32,
        n_embd=960,
        n_ff=2_560,
        n_head=15,
        n_head_kv=5,
        head_dim=64,
        n_ctx_train=8_192,
        tokenizer=_SMOLLM,
        rope_base=100_000.0,
    ),
    SuggestedModel(
        family="Qwen3",
        parameters=600,
        quantization="Q8_0",
        licence=_APACHE,
        repo="Qwen/Qwen3-0.6B-GGUF",
        file_name="Qwen3-0.6B-Q8_0.gguf",
        architecture="qwen3",
        n_layer=28,
        n_embd=1_024,
        n_ff=3_072,
        n_head=16,
        n_head_kv=8,
        head_dim=128,
        n_ctx_train=40_960,
        tokenizer=_QWEN,
        rope_base=1_000_000.0,
    ),
    SuggestedModel(
        family="Llama 3.2",
        parameters=1_240,
        quantization="Q4_K_M",
        licence=_LLAMA_LICENCE,
        repo="bartowski/Llama-3.2-1B-Instruct-GGUF",
        file_name="Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        architecture="llama",
        n_layer=16,
        n_embd=2_048,
        n_ff=8_192,
        n_head=32,
        n_head_kv=8,
        head_dim=64,
        n_ctx_train=131_072,
        tokenizer=_LLAMA3,
        rope_base=500_000.0,
    ),
    SuggestedModel(
        family="Qwen2.5",
        parameters=1_540,
        quantization="Q4_K_M",
        licence=_APACHE,
        repo="Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        file_name="qwen2.5-1.5b-instruct-q4_k_m.gguf",
        architecture="qwen2",
        n_layer=28,
        n_embd=1_536,
        n_ff=8_960,
        n_head=12,
        n_head_kv=2,
        head_dim=128,
        n_ctx_train=32_768,
        tokenizer=_QWEN,
        rope_base=1_000_000.0,
        tied=False,  # the file has both matrices
    ),
    SuggestedModel(
        family="SmolLM2",
        parameters=1_710,
        quantization="Q4_K_M",
        licence=_APACHE,
        repo="HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
        file_name="smollm2-1.7b-instruct-q4_k_m.gguf",
        architecture="llama",
        n_layer=24,
        n_embd=2_048,
        n_ff=8_192,
        n_head=32,
        n_head_kv=32,
        head_dim=64,
        n_ctx_train=8_192,
        tokenizer=_SMOLLM,
        rope_base=130_000.0,
    ),
    SuggestedModel(
        family="Qwen3",
        parameters=1_720,
        quantization="Q8_0",
        licence=_APACHE,
        repo="Qwen/Qwen3-1.7B-GGUF",
        file_name="Qwen3-1.7B-Q8_0.gguf",
        architecture="qwen3",
        n_layer=28,
        n_embd=2_048,
        n_ff=6_144,
        n_head=16,
        n_head_kv=8,
        head_dim=128,
        n_ctx_train=40_960,
        tokenizer=_QWEN,
        rope_base=1_000_000.0,
    ),
    SuggestedModel(
        family="Llama 3.2",
        parameters=3_210,
        quantization="Q4_K_M",
        licence=_LLAMA_LICENCE,
        repo="bartowski/Llama-3.2-3B-Instruct-GGUF",
        file_name="Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        architecture="llama",
        n_layer=28,
        n_embd=3_072,
        n_ff=8_192,
        n_head=24,
        n_head_kv=8,
        head_dim=128,
        n_ctx_train=131_072,
        tokenizer=_LLAMA3,
        rope_base=500_000.0,
    ),
    SuggestedModel(
        family="Qwen3",
        parameters=4_020,
        quantization="Q4_K_M",
        licence=_APACHE,
        repo="Qwen/Qwen3-4B-GGUF",
        file_name="Qwen3-4B-Q4_K_M.gguf",
        architecture="qwen3",
        n_layer=36,
        n_embd=2_560,
        n_ff=9_728,
        n_head=32,
        n_head_kv=8,
        head_dim=128,
        n_ctx_train=40_960,
        tokenizer=_QWEN,
        rope_base=1_000_000.0,
    ),
)
