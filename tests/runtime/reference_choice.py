"""The reference choice for a compaction of the whole runtime, from the runtime's own keys and queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cache_arrays import Heads

from edgekv.policies import Head, Policy
from edgekv.policies.ada import allot
from edgekv.policies.selection import Protection
from edgekv.policies.wrappers import weights_of

SAME = 1e-5  # share of a score within which float32 may rank two cells the other way round


class Reference:
    """Looks at the cache before every compaction, and tells afterwards whether it kept what it should."""

    def __init__(self, n_layer, n_head_kv, w_o=None, rope=None):
        self.choices = []
        self.heads = Heads(n_layer, n_head_kv, w_o, rope)

    def __call__(self, cache, policy, budget, keywords):
        """As `before_compaction` of a recorded runtime."""
        protection = Protection(keywords["n_sink"], keywords["recent"], keywords["pinned"])
        n_layer, shape = self.heads.n_layer, cache.shape
        largest = shape.n_cells_max - shape.n_cells + budget
        n_protected = max(protection.mask(cache.positions(layer, 0)).sum() for layer in range(n_layer))
        budgets = policy.layer_budgets(n_layer, budget, int(n_protected), largest)
        probed, generating = keywords["probed"], keywords["generating"]
        before = self.heads.before(cache, policy, budget, budgets, probed=probed, generating=generating)
        layers = [[head for (layer, _), head in before.items() if layer == i] for i in range(n_layer)]
        self.choices.append(Choice(policy, protection, layers, largest))

    def check(self, compactions):
        """`compactions` of a recording."""
        for choice, (_, kept) in zip(self.choices, compactions, strict=True):
            choice.check(kept)


@dataclass
class Choice:
    """Heads just before a compaction, [layer][head]: each with the mean budget of its layer's heads."""

    policy: Policy
    protection: Protection
    layers: list[list[Head]]
    largest: int

    def check(self, kept):
        """kept[layer][head]: positions."""
        for heads, found in zip(self.layers, kept, strict=True):
            self._check_budgets(heads, [len(positions) for positions in found])
            for head, positions in zip(heads, found, strict=True):
                self._check_set(head, positions)

    def _check_budgets(self, heads, found):
        """Cells of heads that share; where they hold enough, in all exactly what they share."""
        shares = self.policy.shares
        caps = [min(len(head.positions), self.largest if shares else head.budget) for head in heads]
        assert sum(found) == min(sum(head.budget for head in heads), sum(caps))
        expected = self.policy.head_budgets(heads, self.protection, self.largest)
        expected = [min(cells, cap) for cells, cap in zip(expected, caps, strict=True)]
        if found != expected:
            assert found == (self._exchanged(heads) if shares else None), f"the reference has {expected}"

    def _exchanged(self, heads):
        """Budgets if the last cell to get in and the first that did not changed places; None where float32 can tell
        them apart."""
        scores = [weights_of(self.policy.base, head) for head in heads]
        stays = np.concatenate([self.protection.mask(head.positions) for head in heads])
        line = np.concatenate(scores)
        rank = np.argsort(np.where(stays, -np.inf, line))
        last = stays.sum() + len(line) - sum(head.budget for head in heads)
        first_out, last_in = rank[last - 1 : last + 1]
        if line[last_in] - line[first_out] > SAME * line[last_in]:
            return None
        line[[first_out, last_in]] = line[[last_in, first_out]]
        return allot(
            np.split(line, np.cumsum([len(own) for own in scores])[:-1]),
            [head.positions for head in heads],
            heads[0].budget,
            self.protection,
            safeguard=self.policy.native_fields()["safeguard"],
            largest=self.largest,
        )

    def _check_set(self, head, positions):
        """Equal sets, but for one cell that stands for another whose score float32 cannot tell from its own."""
        expected = self.policy.keep(head, self.protection, len(positions))
        exchanged = np.setxor1d(positions, head.positions[expected])
        if len(exchanged) == 0:
            return
        assert len(exchanged) == 2, f"{exchanged} differ"
        chooser = self.policy
        while chooser.name in ("ada", "pyramid"):  # they leave the choice to what they wrap
            chooser = chooser.inner
        cells = np.isin(head.positions, exchanged)
        stages = [chooser.score(head)] + ([chooser.inner.score(head)] if chooser.name == "critical" else [])
        assert min(np.ptp(scores[cells]) / np.abs(scores).max() for scores in stages) < SAME
