"""Choosing the next token: llama.cpp's own samplers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from numbers import Real
from typing import Any

from . import _native
from .errors import ConfigError
from .model import Context


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. Raises ConfigError for values that cannot work.

    temperature: 0 = always the most likely token
    top_k: draw from the k most likely tokens only; 0 = from all
    top_p: draw from the most likely tokens only, as many as together reach probability p
    repeat_penalty, repeat_last: positive logits of the newest `repeat_last` tokens of the reply are divided by
        `repeat_penalty`, negative ones multiplied with it (CTRL, arXiv:1909.05858, whose formula divides all); 1 = off
    seed: None = a new one each time
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    repeat_penalty: float = 1.0
    repeat_last: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0, 100)
        _in_range("top_k", self.top_k, 0, 1 << 20, whole=True)
        _in_range("top_p", self.top_p, 0, 1)
        _in_range("repeat_penalty", self.repeat_penalty, 1, 10)
        _in_range("repeat_last", self.repeat_last, 1, 4096, whole=True)
        if self.seed is not None:
            # to llama.cpp, the next one means any seed
            _in_range("seed", self.seed, 0, 2**32 - 2, whole=True)


def _in_range(name: str, value: float, low: int, high: int, *, whole: bool = False) -> None:
    number = not isinstance(value, bool) and isinstance(value, int if whole else Real)
    if not number or not low <= value <= high:
        kind = "whole number" if whole else "number"
        raise ConfigError(f"{name}={value!r} is not possible; give a {kind} in [{low}, {high}]")


class Sampler:
    """A chain of llama.cpp samplers, which remembers the tokens it gave. Close it when done."""

    def __init__(self, sampling: Sampling) -> None:
        self._llama = _native.bindings()
        self._chain = self._llama.llama_sampler_chain_init(self._llama.llama_sampler_chain_default_params())
        for stage in self._stages(sampling):
            self._llama.llama_sampler_chain_add(self._chain, stage)

    def _stages(self, sampling: Sampling) -> list[Any]:
        llama = self._llama
        if sampling.temperature == 0:
            return [*self._penalties(sampling, 1), llama.llama_sampler_init_greedy()]
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        return [
            *self._penalties(sampling, sampling.top_k),
            llama.llama_sampler_init_top_k(sampling.top_k),
            llama.llama_sampler_init_top_p(sampling.top_p, 1),
            llama.llama_sampler_init_temp(sampling.temperature),
            llama.llama_sampler_init_dist(seed),
        ]

    def _penalties(self, sampling: Sampling, n_wanted: int) -> list[Any]:
        """Stages that penalise repetition, right for the `n_wanted` best tokens after them (0: for all)."""
        if sampling.repeat_penalty == 1:
            return []
        llama = self._llama
        # Looking up every token of a large vocabulary would take milliseconds. A penalty only lowers logits, of at
        # most `repeat_last` tokens, so what is best afterwards is among the best `n_wanted + repeat_last` before.
        narrow = [llama.llama_sampler_init_top_k(n_wanted + sampling.repeat_last)] if n_wanted else []
        # The first argument, the size of the vocabulary, serves samplers that run on a device; this chain does not.
        return [*narrow, llama.llama_sampler_init_penalties(0, sampling.repeat_last, sampling.repeat_penalty, 0.0, 0.0)]

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            self._llama.llama_sampler_free(self._chain)
            self._chain = None

    def sample(self, context: Context) -> int:
        """The next token after the last logits of a context."""
        return int(self._llama.llama_sampler_sample(self._chain, context.handle, -1))
