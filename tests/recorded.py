"""A runtime whose compactions are recorded, so that what every token could see is known afterwards."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

import edgekv


@dataclass
class Recording:
    """Compactions as (tokens fed before it, positions kept[layer][head]), and the RoPE positions that they left:
    those of the kept ones [layer][head], and the next token's. n_head_kv: of all layers, or of each that has a cache
    """

    runtime: edgekv.Runtime
    n_layer: int
    n_head_kv: int | tuple[int, ...]
    compactions: list = field(default_factory=list)
    rope: list = field(default_factory=list)

    def read(self, tokens):
        """Read prompt tokens block by block; returns the logits (n_vocab,) of the last one."""
        assert self.runtime.block_loop.read(tokens, lambda n: True)
        return self.logits()

    def step(self, token):
        """Feed one token as generation does; returns its logits (n_vocab,)."""
        self.runtime.block_loop.step(token)
        return self.logits()

    def logits(self):
        return self.runtime.context.logits_array().copy()

    def note(self):
        """Note what heads hold now: after a compaction, or a recall, which gives tokens their cells again."""
        self.compactions.append((self.runtime.block_loop.cache.n_past, self.kept()))
        self.rope.append((self.rope_kept(), self.runtime.block_loop.cache.rope_past))

    def kept(self):
        """Positions that each head holds now: a nested list [layer][head]."""
        return self._of_heads(self.runtime.block_loop.cache.positions)

    def rope_kept(self):
        """RoPE positions of what each head holds now, likewise."""
        return self._of_heads(partial(self.runtime.block_loop.cache.positions, rope=True))

    def _of_heads(self, read):
        return [[read(layer, g) for g in range(n)] for layer, n in enumerate(self.heads)]

    @property
    def heads(self):
        """KV heads of every layer."""
        return (self.n_head_kv,) * self.n_layer if isinstance(self.n_head_kv, int) else self.n_head_kv

    def visible(self, n_tokens):
        """visible[l, g, t, j]: head g of layer l held token j when token t was fed."""
        seen = np.ones((self.n_layer, max(self.heads), n_tokens, n_tokens), dtype=bool)
        for fed, kept in self.compactions:
            for layer in range(self.n_layer):
                for g in range(self.heads[layer]):
                    seen[layer, g, fed:, :fed] = np.isin(np.arange(fed), kept[layer][g])
        return seen

    def positions(self, n_tokens):
        """RoPE positions that tokens were fed at, (n_tokens,)."""
        positions = np.arange(n_tokens)
        for (fed, _), (_, following) in zip(self.compactions, self.rope, strict=True):
            positions[fed:] = np.arange(n_tokens - fed) + following
        return positions

    def moves(self, n_tokens):
        """By how many positions every compaction turned keys: pairs (tokens fed before, (layer, head, token))."""
        now = np.tile(self.positions(n_tokens), (self.n_layer, max(self.heads), 1))
        found = []
        for (fed, kept), (rope, _) in zip(self.compactions, self.rope, strict=True):
            by = np.zeros_like(now)
            for layer, g in ((layer, g) for layer, n in enumerate(self.heads) for g in range(n)):
                tokens = kept[layer][g]
                by[layer, g, tokens] = rope[layer][g] - now[layer, g, tokens]
            now += by
            found.append((fed, by))
        return found


@contextmanager
def recorded_runtime(path, *, n_layer, n_head_kv, before_compaction=None, threads=1, **options):
    """A runtime on a tiny model, with its compactions recorded.

    `before_compaction(cache, keywords)` is called before each with the arguments of Cache.compact.
    threads: with so little to compute, several wait for each other longer than they work; test_exactness.py,
        test_kept_sets.py and test_kinds.py have cases with two
    """
    with edgekv.Runtime(path, memory="4GiB", threads=threads, **options) as runtime:
        recording = Recording(runtime, n_layer, n_head_kv)
        cache = runtime.block_loop.cache
        compact = cache.compact

        def compact_and_record(policy, budget, **keywords):
            if before_compaction is not None:
                before_compaction(cache, policy, budget, keywords)
            result = compact(policy, budget, **keywords)
            recording.note()
            return result

        cache.compact = compact_and_record
        yield recording
