"""Search for the largest budget that fits, with few plans: bytes grow with it, nearly along a straight line."""

from __future__ import annotations

from collections.abc import Callable

MOST_BY_LINE = 8  # guesses; a range that is still open then is halved by the native planner


class BudgetSearch:
    """Tells which budgets fit, for settings that differ in nothing else.

    The native planner halves the range of budgets, and asks for a dozen. A line through the smallest and the largest
    budget leads to the last one that fits. It was planned, and so was the next one, which does not fit: all other
    answers follow from these two.

    spare: returns the bytes that a budget leaves; negative = it does not fit
    most: the largest budget that may be asked for, beside the first one
    """

    def __init__(self, spare: Callable[[int], int], most: int) -> None:
        self._spare = spare
        self._most = most
        self._fitting: tuple[int, int] | None = None  # the largest budget that was seen to fit, and what it leaves
        self._failing: tuple[int, int] | None = None  # the smallest one that was seen not to fit, likewise
        self._n_guesses = 0

    def fits(self, budget: int) -> bool:
        """Return True if a budget fits. Raises what `spare` raises."""
        while True:
            if self._fitting and budget <= self._fitting[0]:
                return True
            if self._failing and budget >= self._failing[0]:
                return False
            tried = self._next(budget)
            spare = self._spare(tried)
            if spare >= 0:
                self._fitting = (tried, spare)
            else:
                self._failing = (tried, spare)

    def _next(self, budget: int) -> int:
        """Return the budget to plan next, so that it is soon known if the given one fits."""
        if self._fitting is None:
            return budget
        if self._failing is None:
            return max(budget, self._most)
        self._n_guesses += 1
        if self._n_guesses > MOST_BY_LINE:
            return budget
        (low, left), (high, lacking) = self._fitting, self._failing
        return min(max(low + (high - low) * left // (left - lacking), low + 1), high - 1)
