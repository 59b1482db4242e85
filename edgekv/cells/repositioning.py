"""Decides when kept keys are turned to adjacent RoPE positions, so that a text may exceed the trained context."""

from __future__ import annotations

from typing import TypeAlias

from edgekv.binding.cache import Cache
from edgekv.errors import PromptLengthError
from edgekv.options import Options

Announced: TypeAlias = tuple[int, bool] | None  # n_past and `is_long` when a text was announced; None = none was


class Repositioning:
    """Decides at which evictions a cache repositions its keys (`Options.reposition`).

    "auto" leaves keys where they are while a text stays in the first half of the trained context. Models use positions
    in the second half badly (docs/choosing-a-policy.md), so in a longer text keys of f16 are turned at every eviction.
    Turning rounds quantised keys once more. They are turned only when new tokens have come half-way from where turning
    leaves them to the end of the trained context.

    announced: the text that is being read, until one of its tokens was fed or it was given up
    limit: the most tokens that a session can read and generate; None = any number
    """

    def __init__(self, cache: Cache, options: Options, n_ctx_train: int) -> None:
        self._cache = cache
        self._options = options
        self._well_known = n_ctx_train // 2
        self._turns = cache.repositions and cache.shape.n_cells_max <= n_ctx_train
        self._margin = options.block + options.probe_cells  # tokens that may be fed before the next eviction
        halfway = (cache.shape.n_cells_max + n_ctx_train) // 2
        self._first = 0 if options.kv_type == "f16" else halfway
        self.is_long = options.reposition == "always"  # True once a text left the first half, too
        self.announced: Announced = None
        has_positions = cache.shape.n_layer or cache.shape.window_cells  # a recurrent state knows none
        is_limited = has_positions and not self._turns and not options.allow_beyond_trained
        self.limit = n_ctx_train if is_limited else None

    def clear(self) -> None:
        """Start over with an empty cache."""
        self.restore(is_long=False)

    def restore(self, *, is_long: bool) -> None:
        """Go back to the state of a snapshot."""
        self.announced = None
        self.is_long = is_long or self._options.reposition == "always"

    def settle(self) -> None:
        """Forget an announced text if none of its tokens was fed."""
        if self.announced is not None and self.announced[0] == self._cache.n_past:
            self.is_long = self.announced[1]
        self.announced = None

    def expect(self, n_tokens: int) -> None:
        """Announce the number of tokens to feed, so that a long text is repositioned from its beginning."""
        self.announced = self._cache.n_past, self.is_long
        self.is_long |= self._cache.rope_past + n_tokens > self._well_known

    def turns_from_start(self, n_tokens: int, *, is_long: bool) -> bool:
        """Return True if the first eviction in a text of n_tokens turns keys. is_long: as before the text"""
        is_long |= self._options.reposition == "always" or n_tokens > self._well_known
        return self._turns and is_long

    @property
    def turns(self) -> bool:
        """True if evictions turn keys, from now on or sooner or later in this text."""
        return self._turns and self.is_long

    def due(self) -> bool:
        """Return True if the next eviction must turn the keys that it keeps."""
        if not self._turns:
            return False
        end = self._cache.rope_past + self._margin
        self.is_long |= end > self._well_known
        return self.is_long and end > self._first

    def check_length(self, n_tokens: int) -> None:
        """Raise PromptLengthError for a text that ends beyond the limit."""
        if self.limit is not None and n_tokens > self.limit:
            raise PromptLengthError(
                f"the prompt ends at token {n_tokens}, but the model was trained on {self.limit}, and "
                f"{self.obstacle}, give a shorter text, or allow_beyond_trained=True to read on all the same",
                n_tokens=n_tokens,
                limit=self.limit,
            )

    @property
    def obstacle(self) -> str:
        """The reason for the limit, and the remedy."""
        n_cells = self._cache.shape.n_cells_max
        if self._options.reposition == "never":
            return "reposition='never' keeps every key at its position; use reposition='auto'"
        if not self._cache.repositions:
            return "its keys cannot be moved to other positions; choose a model with plain RoPE and no sliding windows"
        return f"a head of {n_cells} cells leaves no positions to move to; lower the budget"
