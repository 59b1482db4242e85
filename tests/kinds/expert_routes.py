"""Experts that the routers of one run choose, for another run that takes the same.

Of two experts that are all but equal, the last digits of a sum choose one, and the logits of that token may then lie
anywhere. So two runs are compared with the same experts, and each choice that differs has to be such a tie.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
from graph_nodes import floats, integers, overwrite

SORTING = "ARGSORT"  # the node that sorts a token's experts, the best one first


class ExpertRoutes:
    """The experts of each token in order, by router, in the order of the tokens."""

    def __init__(self):
        self._orders = defaultdict(list)

    def note(self, node):
        """Note the experts of some tokens."""
        if node.ne[1]:  # the last layer is computed for tokens that need logits
            self._orders[node.name].extend(integers(node))

    def taken(self):
        """Return routes for another run."""
        return TakenRoutes({name: iter(orders) for name, orders in self._orders.items()})


class TakenRoutes:
    """The routes of another run, in place of one's own."""

    def __init__(self, orders):
        self._orders = orders
        self._values = defaultdict(list)

    def take(self, node):
        """Give tokens the experts of the other run, and note what this run's router gives each, in their order."""
        if node.ne[1]:
            order = np.array(list(itertools.islice(self._orders[node.name], node.ne[1])), dtype=np.int32)
            self._values[node.name].append(np.take_along_axis(floats(node.src[0].contents)[0], order, axis=1))
            overwrite(node, order)

    def largest_step_up(self):
        """Return by how much an expert may be better than the one before it, over the deviation of its router."""
        found = [np.concatenate(values) for values in self._values.values()]
        return max((np.diff(values, axis=1).max() / values.std() for values in found), default=0)
