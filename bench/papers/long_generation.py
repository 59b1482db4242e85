"""Long generations under a budget: whether they fall into repetition, and how likely they are under the full cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import edgekv
from edgekv.errors import ConfigError
from edgekv.evals.setting import OpenRuntime, Setting
from edgekv.evals.tokens import begin, log_losses, prompt_tokens
from edgekv.generation.sampler import GREEDY, Sampler, Sampling

from .full_cache import full_cache

NGRAMS = (1, 2, 3, 4)
REPEATED = 4  # tokens of the n-grams that are counted as repeated
SAMPLED = Sampling(temperature=0.8, repeat_penalty=1.0, seed=0)

# Beginnings that leave much to tell, each of another kind.
PROMPTS = {
    "story": (
        "The ferry was late again. Ines sat on her suitcase at the end of the pier and counted the lights on the other "
        "shore, as she had done every evening since her brother left. Tonight one light was missing. She counted "
        "again, and then she stood up, because the missing light was the one in her own kitchen.\n\n"
    ),
    "essay": (
        "How a small town learned to live with its river\n\nFor two hundred years the people of Hallow Bridge built "
        "walls against the water, and for two hundred years the water came over them. This is the history of what they "
        "tried, what it cost, and what they understood in the end. It begins with a flood that nobody expected.\n\n"
    ),
    "manual": (
        "A beginner's guide to keeping bees\n\nThis guide follows the year of a hive from the first warm days to the "
        "winter. Each chapter explains what the bees are doing, what the keeper should do, which tools are needed, and "
        "which mistakes are common.\n\nChapter 1: Before the bees arrive\n\n"
    ),
}


def long_generation(
    runtimes: OpenRuntime, setting: Setting, prompt: str, n_tokens: int, sampling: Sampling = GREEDY
) -> dict[str, Any]:
    """Continue a prompt by n_tokens, also past tokens that would end a reply, and measure the result.

    n_prompt, n_tokens, n_evictions: tokens read, tokens generated, evictions meanwhile
    end: tokens generated before the first that would have ended a reply; None = there is none
    ppl_full: perplexity of the reply under the full cache, each token predicted after the prompt and all tokens before
        it; None = prompt and reply are longer than the trained context, where a full cache says nothing
    text: the reply
    The rest is what `repetition` returns. Raises InputError for more tokens than the runtime can read, and what
    `edgekv.Runtime` does.
    """
    n_room = len(prompt.encode()) + n_tokens  # no token is less than a byte
    runtime = runtimes.get(setting, n_room)
    given = prompt_tokens(runtime.model, prompt)
    said = generate(runtime, given, n_tokens, sampling)
    ends = (i for i, token in enumerate(said) if runtime.model.is_end(token))
    result: dict[str, Any] = {
        "n_prompt": len(given),
        "n_tokens": n_tokens,
        "n_evictions": runtime.block_loop.work.evictions,
        "end": next(ends, None),
        "text": "".join(runtime.model.text(said)),
        "ppl_full": None,
    }
    if len(given) + n_tokens <= runtime.model.n_ctx_train:
        result["ppl_full"] = math.exp(math.fsum(_full_losses(runtime, setting, n_room, given, said)) / n_tokens)
    return result | repetition(said)


def _full_losses(
    runtime: edgekv.Runtime, setting: Setting, n_room: int, given: Sequence[int], said: Sequence[int]
) -> list[float]:
    """Return -ln p of the generated tokens under the full cache: the runtime's own, or one beside it."""
    if setting.is_full:
        return list(log_losses(runtime, given, said))
    with full_cache(runtime, setting, n_room) as full:
        return list(log_losses(full, given, said))


def generate(runtime: edgekv.Runtime, given: Sequence[int], n_tokens: int, sampling: Sampling) -> list[int]:
    """Return n_tokens that a model generates after the given ones, end tokens among them.

    Raises ConfigError for less than one token, InputError as `begin`.
    """
    if n_tokens < 1:
        raise ConfigError(f"n_tokens={n_tokens} is not possible; give at least 1")
    begin(runtime, len(given) + n_tokens)
    runtime.block_loop.read(given, lambda _: True)
    sampler = Sampler(sampling)
    try:
        said = [sampler.sample(runtime.context)]
        while len(said) < n_tokens:
            runtime.block_loop.step(said[-1])
            said.append(sampler.sample(runtime.context))
    finally:
        sampler.close()
    return said


def repetition(tokens: Sequence[int]) -> dict[str, Any]:
    """Figures of repetition; shares of a text too short for an n-gram are None.

    distinct: by n, the different n-grams as a share of all (distinct-n, arXiv:1510.03055)
    repeated_4: the 4-grams that came before, as a share of all (seq-rep-4, arXiv:1908.04319)
    longest_repeat: the longest run of tokens that came before; in a loop, nearly all of them
    repeat_distance: how far back that run came; in a loop, the length of the loop
    """
    distinct = {str(n): _distinct(tokens, n) for n in NGRAMS}
    of_four = distinct[str(REPEATED)]
    longest, distance = longest_repeat(tokens)
    return {
        "distinct": distinct,
        "repeated_4": None if of_four is None else 1 - of_four,
        "longest_repeat": longest,
        "repeat_distance": distance,
    }


def longest_repeat(tokens: Sequence[int]) -> tuple[int, int | None]:
    """The length of the longest run of tokens that comes twice, itself overlapped too, and how far the two lie apart.

    Of equally long runs the nearest; (0, None) = no token comes twice. Takes time with the square of the length.
    """
    line = np.asarray(tokens)
    longest, distance = 0, None
    for lag in range(1, len(line)):
        if len(line) - lag <= longest:
            break
        breaks = np.flatnonzero(line[lag:] != line[:-lag])
        run = int(np.diff(breaks, prepend=-1, append=len(line) - lag).max()) - 1
        if run > longest:
            longest, distance = run, lag
    return longest, distance


def _distinct(tokens: Sequence[int], n: int) -> float | None:
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None
