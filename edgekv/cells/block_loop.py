"""The block loop: feed a block, score, compact to the budget, repeat; the same in prefill and in generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from edgekv.archive.recalling import Recalled, gained, recalled_cells, recalling
from edgekv.archive.row_files import Mark
from edgekv.archive.session_archive import Archive

from .block_loop_snapshot import BlockLoopNotes, BlockLoopSnapshot
from .fed_cells import FedCells
from .feeds import ALWAYS, RECALLING, Feed, Feeding, GoesOn, at_once, run
from .token_blocks import HeldBack, blocks, with_last


class BlockLoop(FedCells):
    """Reads texts and generated tokens, recalls what a prompt needs, and copies its cells."""

    _is_moved = False  # the cells are other ones, or are to be, since the last recall began

    def resize(self, budget: int) -> None:
        """Keep `budget` cells per head from the next block or token on, or from `shrink` on; at most those of the plan.

        The memory of cells that are given up then goes back to the system. Empty cells give it back at once. A feed may
        wait meanwhile: it is decoded first. A recall that is under way begins again after the eviction.
        """
        self._is_moved = True
        self.cache.allow(budget + self._options.block + self._options.probe_cells)
        self.budget, self.is_resized = budget, self.cache.n_past > 0
        if not self.is_resized:
            self.cache.clear()

    def refill(self, tokens: Iterable[int], archive: Archive, n_whole: int) -> None:
        """Read archived tokens without decoding them: block by block each gets its rows, and cells are evicted.

        n_whole: tokens of the whole text that they begin. If it is long its keys were turned from the beginning

        Raises ArchiveError if the file cannot be read; the tokens before have their cells then.
        """

        def give_rows(feeds: Sequence[Feed]) -> list[int]:
            (feed,) = feeds
            archive.refill(feed.cache, len(feed.tokens))
            return [-1]

        self.repositioning.expect(n_whole)
        run(self.reading(tokens, ALWAYS, want_logits=False), give_rows)

    def shrink(self) -> None:
        """Evict the cells beyond the budget, as before the next block."""
        self.forget_open()
        run(self._compact(full=True), self._decoder.decode)
        self._write_taken()

    def read(
        self, tokens: Iterable[int], after_ubatch: Callable[[int], bool], probe: Sequence[int] = (), **how: Any
    ) -> bool:
        """Read tokens as `reading` does, alone: each feed is decoded at once. after_ubatch: a plain function"""
        return run(self.reading(tokens, at_once(after_ubatch), probe, **how), self._decoder.decode)

    def step(self, token: int, *, drafts: bool = False) -> None:
        """Feed a generated token as `stepping` does, alone: each feed is decoded at once."""
        run(self.stepping(token, drafts=drafts), self._decoder.decode)

    def reading(
        self,
        tokens: Iterable[int],
        after_ubatch: GoesOn,
        probe: Sequence[int] = (),
        *,
        part_ends: Sequence[int] = (),
        want_logits: bool = True,
        observe: Callable[[int], None] | None = None,
        while_recalling: GoesOn = ALWAYS,
    ) -> Feeding[bool]:
        """Read tokens block by block; returns True if all were read.

        after_ubatch: called with the number of tokens read since the last call; returns False to stop reading. The
            tokens read until then stay in the cache
        probe: tokens that choose the cells to keep by their attention. They are fed after a block, and their cells are
            removed again. Their queries score until UBATCH tokens have come after them; the last block has a probe of
            its own
        part_ends: end of each part of the probe; empty = one part (`Cache.probe`)
        want_logits: compute the logits of the last token, for a reply. The last tokens of a probed prompt are
            fed after the last compaction (`_n_held`). With an archive those of any prompt are, and first they
            recall what they need
        observe: called with each token before it is fed, while the logits of the one before are there. Tokens are then
            fed one by one, without a probe
        while_recalling: called between the heads that a recall scans; returns False to stop (`recalling`)
        """
        self._since_probe = None
        self._part_ends = part_ends
        if self.archive is not None:
            self.archive.asked, self.archive.brought, self.archive.needed = (), None, None
        recalls = self.archive is not None and want_logits and observe is None
        n_held = self._n_held(probe, recalls=recalls) if want_logits else 0
        held = HeldBack(tokens, n_held)
        block: list[int] = []
        for block, is_last in with_last(blocks(held, self._options.block)):
            *earlier, last = blocks(block, self._options.n_ubatch if observe is None else 1)
            for ubatch in earlier:
                if observe is not None:
                    observe(ubatch[0])
                yield from self._feed(ubatch, want_logits=observe is not None, probe=probe)
                if not (yield from after_ubatch(len(ubatch))):
                    self._write_taken()
                    return False
            if observe is not None:
                observe(last[0])
            is_end = is_last and n_held == 0
            yield from self._feed(last, want_logits=observe is not None or (want_logits and is_end), probe=probe)
            yield from self._compact(probe, is_last=is_last)
            if not (yield from after_ubatch(len(last))):
                self._write_taken()
                return is_end
        if not block:  # all of the prompt is held back, and what came before it may not have its scores yet
            yield from self._compact(probe, is_last=True)
        self._write_taken()
        if recalls and self.archive is not None:
            self.archive.asked = list(held.tokens)
            if not (yield from self._recall(while_recalling, lambda: self._compact(probe, is_last=True))):
                return False
        return (yield from self._read_held(held.tokens, after_ubatch, probe))

    def _n_held(self, probe: Sequence[int], *, recalls: bool) -> int:
        """Return how many last tokens of a prompt are fed after the last compaction.

        A probe and a recall leave no logits, so it is at least one. A probe's question ends the prompt. If it lay in
        the cells it would take most of its own attention, and cells from the text. It takes spare cells in their place,
        and leaves half of them to the reply. If a recall fills the other half, the prompt leaves half of the rest.
        """
        if recalls:
            return self._n_recalling
        if len(probe) == 0:
            return 0
        return max(1, min(len(probe), self._options.spare_cells // 2))

    @property
    def _n_recalling(self) -> int:
        """Tokens at the end of a prompt that recall."""
        return max(1, min(self._options.spare_cells // 4, self._options.probe_tokens))

    @property
    def n_asking(self) -> int:
        """Tokens at the end of a prompt that are fed anew, also if cells have them: the last one has the logits."""
        is_whole = self.archive is None or self.cache.n_cells == self.cache.n_past
        return 1 if is_whole else self._n_recalling

    def _read_held(self, tokens: Iterable[int], after_ubatch: GoesOn, probe: Sequence[int]) -> Feeding[bool]:
        """Read the last tokens of a prompt, with the logits of the last one; returns True if all were read."""
        for ubatch, is_last in with_last(blocks(tokens, self._options.n_ubatch)):
            yield from self._feed(ubatch, want_logits=is_last, probe=probe)
            if not (yield from after_ubatch(len(ubatch))):
                return is_last
        return True

    def _recall(self, goes_on: GoesOn, evict: Callable[[], Feeding[None]]) -> Feeding[bool]:
        """Fill free cells with what the end of the last prompt needs, once; returns False if it was stopped.

        It makes way for a move of the ceiling, and begins again after it. A second move waits for its end.

        evict: goes under the budget of the move
        """
        archive, cache, n_cells = self.archive, self.cache, recalled_cells(self._options.spare_cells)
        was_evicted = cache.n_cells != cache.n_past
        if archive is None or not archive.asked or archive.brought is not None or n_cells == 0 or not was_evicted:
            return True
        self.archive_fed()
        if archive.n_tokens == 0:
            return True
        started = time.perf_counter()

        def makes_way(*n_heads: int) -> Feeding[bool]:
            yield RECALLING
            return not self._is_moved and (yield from goes_on(*n_heads))

        def recall(goes_on: GoesOn) -> Feeding[Recalled]:
            n_protected = self._options.protected_cells(self.budget, sum(b - a for a, b in self.pinned))
            n_needed = max(0, self.budget - n_protected - 1)  # one is left for the policy
            return recalling(archive, cache, lambda: self._probe(archive.asked), n_cells, goes_on, n_needed)

        self._is_moved = False
        held = cache.all_positions()
        recalled = yield from recall(makes_way)
        if self._is_moved:
            if self.is_resized:
                yield from evict()
                held = cache.all_positions()
            recalled = yield from recall(goes_on)
        archive.brought, archive.needed = gained(held, cache.all_positions()), recalled.needed
        self.work.recalled_cells += recalled.n_cells
        self.work.scanned_tokens += recalled.n_scanned
        self.work.recalls += 1
        self.work.recall_s += time.perf_counter() - started
        return recalled.is_whole

    def stepping(self, token: int, *, drafts: bool = False, goes_on: GoesOn = ALWAYS) -> Feeding[None]:
        """Feed one generated token and compute its logits. Evicts when `evict_every` spare cells are filled.

        drafts: decode a draft with the token, or accept the token from the last draft. `logits_row` is then the row of
            the next token's logits
        goes_on: as `while_recalling` of `reading`, for the recall after the first eviction of a prompt and its reply
        """
        return self._feed(
            [token],
            want_logits=True,
            spare=self._options.spare_cells,
            generating=True,
            drafts=drafts,
            after_evicting=lambda: self._recall(goes_on, lambda: self._compact(generating=True)),
        )

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a snapshot, if it was taken now."""
        return self.cache.snapshot_bytes + self._speculation.earlier.nbytes

    @property
    def stored_bytes(self) -> int:
        """The most bytes of a snapshot beside the archive, if it was taken now."""
        rows = None if self.archive is None else self.archive.handle
        return self.cache.snapshot_bytes_beside(rows) + self._speculation.earlier.nbytes

    def mark(self) -> Mark | None:
        """Return a mark of all tokens, which are archived if some were; None = there is no archive."""
        archive = self.archive
        if archive is None:
            return None
        if archive.n_tokens:
            self.archive_fed()
        return archive.mark(self.cache.n_past)

    def snapshot(self) -> BlockLoopSnapshot:
        """Copy the cells and the notes on them into memory, without counters and budget."""
        return BlockLoopSnapshot(self.cache.snapshot(), self.notes)

    @property
    def notes(self) -> BlockLoopNotes:
        """The notes on the cells."""
        fresh, is_long = self.cache.n_past - self._scored_at, self.repositioning.is_long
        return BlockLoopNotes(self.pinned, fresh, is_long, self._speculation.earlier.to_bytes())

    def restore(self, snapshot: BlockLoopSnapshot) -> None:
        """Go back to a snapshot. Raises ConfigError for one of another cache.

        After any other exception, call `restore` again or empty the cells.
        """
        self.settle()
        self.forget_open()
        self.cache.restore(snapshot.cells)
        self.take(snapshot.notes)

    def take(self, notes: BlockLoopNotes) -> None:
        """Take the notes on cells that the cache holds already."""
        n_past = self.cache.n_past
        self.forget_open()
        self._is_moved = True
        self.pinned = notes.pinned
        self._scored_at = n_past - notes.fresh
        self.repositioning.restore(is_long=notes.is_long)
        self._speculation.earlier.restore(notes.history if self._speculation.n_most else b"", n_past)

    @property
    def refills(self) -> bool:
        """True if archived rows are all that reading a token leaves: no window, state or query that scores."""
        shape = self.cache.shape
        has_states = shape.window_cells or shape.state_bytes or shape.device_state_bytes
        return not has_states and "queries" not in self._options.parsed_policy.reads
