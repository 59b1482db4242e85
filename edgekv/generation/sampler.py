"""Choosing the next token: llama.cpp's own samplers."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from edgekv.arguments import check_range
from edgekv.binding import library
from edgekv.binding.model import Context
from edgekv.errors import ConfigError

MAX_SEED = 2**32 - 2  # llama.cpp takes the next number as any seed, and writes it -1
ANY_SEED = -1
MAX_REPEAT_LAST = 4096  # newest tokens that are penalised
MAX_BIASES = 1024  # tokens whose logits a reply may shift
MAX_BIAS = 10_000  # no logit comes near it, so its negative forbids a token


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options for choosing tokens. Raises ConfigError for values that cannot work.

    temperature: 0 = always the most likely token; top_k, top_p, min_p and seed then have no effect
    top_k: draw only from the k most likely tokens; 0 = all
    top_p: of these, draw only from the most likely ones that together reach this probability
    min_p: of these, draw only from those at least this many times as likely as the first
    repeat_penalty: makes the newest tokens that the session generated less likely: positive logits are divided by it,
        negative ones multiplied by it (CTRL, arXiv:1909.05858, whose formula divides all); 1 = off. Tokens that were
        only read are never penalised
    frequency_penalty, presence_penalty: subtracted from the logit of each of these tokens, the first as often as the
        token is among them, the second once; negative values make them likelier; 0 = off
    repeat_last: number of the newest tokens to penalise
    logit_bias: added to the logits of tokens, as a mapping from ids to numbers; -10,000 forbids a token. It is kept as
        pairs in order of the ids
    seed: seed of the first reply; None or -1 = a new one for each session

    A session has one sampler. If two replies in a row have equal Samplings, the second one continues: it draws further
    random numbers, and still penalises the tokens of the first one. A reply with another Sampling begins anew.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.1
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last: int = 64
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0, 100, whole=False)
        check_range("top_k", self.top_k, 0, 1 << 20)
        check_range("top_p", self.top_p, 0, 1, whole=False)
        check_range("min_p", self.min_p, 0, 1, whole=False)
        check_range("repeat_penalty", self.repeat_penalty, 1, 10, whole=False)
        check_range("frequency_penalty", self.frequency_penalty, -2, 2, whole=False)
        check_range("presence_penalty", self.presence_penalty, -2, 2, whole=False)
        check_range("repeat_last", self.repeat_last, 1, MAX_REPEAT_LAST)
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))
        if self.seed == ANY_SEED:
            object.__setattr__(self, "seed", None)
        if self.seed is not None:
            check_range("seed", self.seed, 0, MAX_SEED)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs, in order of the ids."""
        return cast(tuple[tuple[int, float], ...], self.logit_bias)

    def check(self, n_vocab: int) -> None:
        """Raise ConfigError if `logit_bias` names a token that the vocabulary lacks."""
        for token, _ in self.biases:
            if token >= n_vocab:
                raise ConfigError(f"logit_bias names token {token}, but the vocabulary has ids in [0, {n_vocab})")


def _pairs(biases: Any) -> tuple[tuple[int, float], ...]:
    """Return biases in order of their ids. Raises ConfigError."""
    try:
        pairs = [(token, bias) for token, bias in (biases.items() if isinstance(biases, Mapping) else biases)]
    except (TypeError, ValueError):
        raise ConfigError(f"logit_bias={biases!r} is not possible; give a mapping from ids to numbers") from None
    if len(pairs) > MAX_BIASES:
        raise ConfigError(f"logit_bias has {len(pairs)} tokens, but at most {MAX_BIASES} are taken; give fewer")
    for token, bias in pairs:
        check_range("logit_bias", token, 0, (1 << 31) - 1)
        check_range(f"logit_bias[{token}]", bias, -MAX_BIAS, MAX_BIAS, whole=False)
    return tuple(sorted(pairs))


# default in a conversation with a person: a chat or a server; chosen by measurement (docs/sampling.md)
CONVERSATION = Sampling(temperature=0.5, min_p=0.1)

# always the most likely token, and no penalty, for measurements
GREEDY = Sampling(temperature=0.0, repeat_penalty=1.0)


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The state of a sampler in plain values. The next reply continues from it, and a snapshot holds it.

    seed: of the first reply
    n_drawn: tokens chosen so far, including those that ended replies
    newest: the last `repeat_last` tokens that were generated
    """

    sampling: Sampling
    seed: int
    n_drawn: int = 0
    newest: tuple[int, ...] = ()


class Sampler:
    """A chain of llama.cpp samplers for one reply. It remembers the tokens that it chose. Close it when done."""

    def __init__(self, sampling: Sampling, before: SamplerState | None = None, forbidden: Sequence[int] = ()) -> None:
        """Make the chain.

        before: the state after the last reply, continued from if its sampling is equal
        forbidden: tokens that are never chosen
        """
        if before is None or before.sampling != sampling:
            before = SamplerState(sampling, secrets.randbits(31) if sampling.seed is None else sampling.seed)
        self._before = before
        self._n_drawn = 0
        self._newest = deque(before.newest, maxlen=sampling.repeat_last + 1)
        biases = dict(sampling.biases) | dict.fromkeys(forbidden, -MAX_BIAS)
        self._biased = np.fromiter(biases.keys(), np.int64)
        self._biases = np.fromiter(biases.values(), np.float32)
        self._llama = library.bindings()
        self._chain = self._llama.llama_sampler_chain_init(self._llama.llama_sampler_chain_default_params())
        for stage in self._stages(sampling):
            self._llama.llama_sampler_chain_add(self._chain, stage)
        for token in before.newest:
            self._llama.llama_sampler_accept(self._chain, token)

    def _stages(self, sampling: Sampling) -> list[Any]:
        llama = self._llama
        if sampling.temperature == 0:
            return [*self._penalties(sampling, 1), llama.llama_sampler_init_greedy()]
        # The library does not give out the state of its random generator, so every reply has a new generator. Its
        # seed follows from the first seed and the number of tokens drawn before; the golden ratio spreads the seeds.
        seed = (self._before.seed + self._before.n_drawn * 0x9E3779B1) % (MAX_SEED + 1)
        return [
            *self._penalties(sampling, sampling.top_k),
            llama.llama_sampler_init_top_k(sampling.top_k),
            llama.llama_sampler_init_top_p(sampling.top_p, 1),
            llama.llama_sampler_init_min_p(sampling.min_p, 1),
            llama.llama_sampler_init_temp(sampling.temperature),
            llama.llama_sampler_init_dist(seed),
        ]

    def _penalties(self, sampling: Sampling, n_wanted: int) -> list[Any]:
        """Return stages that penalise repetition. Later stages look at the `n_wanted` best tokens; 0 = at all."""
        repeat, frequency, presence = (
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
        if (repeat, frequency, presence) == (1, 0, 0):
            return []
        llama = self._llama
        # Looking up every token of a large vocabulary would take milliseconds. If penalties only lower logits, at most
        # `repeat_last` tokens lose their rank. So the best `n_wanted` afterwards are among the best
        # `n_wanted + repeat_last` before.
        lowers = frequency >= 0 and presence >= 0
        narrow = [llama.llama_sampler_init_top_k(n_wanted + sampling.repeat_last)] if n_wanted and lowers else []
        # The first argument, the size of the vocabulary, serves samplers that run on a device; this chain does not.
        return [*narrow, llama.llama_sampler_init_penalties(0, sampling.repeat_last, repeat, frequency, presence)]

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            self._llama.llama_sampler_free(self._chain)
            self._chain = None

    def sample(self, context: Context, row: int = -1) -> int:
        """Return the next token, from the last logits of a context, or from the logits of a token in the last batch."""
        if len(self._biased):
            logits = context.logits_array(row)
            models_own = logits[self._biased]
            logits[self._biased] += self._biases
        token = int(self._llama.llama_sampler_sample(self._chain, context.handle, row))
        if len(self._biased):
            logits[self._biased] = models_own  # log probabilities are told of these
        self._n_drawn += 1
        self._newest.append(token)
        return token

    def state(self, *, ended: bool) -> SamplerState:
        """Return the state. ended: the last token ended the reply; it does not belong to it, and is not penalised."""
        before, said = self._before, tuple(self._newest)[:-1] if ended else tuple(self._newest)
        newest = said[-before.sampling.repeat_last :]
        return SamplerState(before.sampling, before.seed, before.n_drawn + self._n_drawn, newest)
