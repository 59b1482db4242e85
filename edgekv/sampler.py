"""Choosing the next token: llama.cpp's own samplers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from . import _native
from .errors import ConfigError
from .model import Context


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. Raises ConfigError for values that cannot work.

    temperature: 0 = always the most likely token
    top_k, top_p: only the k most likely tokens, only the most likely ones that together reach probability p
    seed: None = a new one each time
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise ConfigError(f"temperature={self.temperature} is not possible; give a number in [0, 100]")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ConfigError(f"top_k={self.top_k}, top_p={self.top_p}: give top_k >= 0 and top_p in (0, 1]")
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed={self.seed} is not possible; give a whole number in [0, 2^32)")


class Sampler:
    """A chain of llama.cpp samplers. Close it when done."""

    def __init__(self, sampling: Sampling) -> None:
        llama = _native.bindings()
        self._llama = llama
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        if sampling.temperature == 0:
            stages = [llama.llama_sampler_init_greedy()]
        else:
            seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
            stages = [
                llama.llama_sampler_init_top_k(sampling.top_k),
                llama.llama_sampler_init_top_p(sampling.top_p, 1),
                llama.llama_sampler_init_temp(sampling.temperature),
                llama.llama_sampler_init_dist(seed),
            ]
        for stage in stages:
            llama.llama_sampler_chain_add(self._chain, stage)

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            self._llama.llama_sampler_free(self._chain)
            self._chain = None

    def sample(self, context: Context) -> int:
        """The next token after the last logits of a context."""
        return int(self._llama.llama_sampler_sample(self._chain, context.handle, -1))
