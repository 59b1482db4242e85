"""The block loop: feed a block, score, compact to the budget, repeat; the same in prefill and in generation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from edgekv.archive.recalling import ROUNDS, Recalled, recalled_cells, recalling
from edgekv.archive.session_archive import Archive
from edgekv.binding import structs
from edgekv.binding.cache import Cache, Usage
from edgekv.options import UBATCH, Options

from .decoder import Decoder
from .feeds import ALWAYS, RECALLING, Feed, Feeding, GoesOn, at_once, run
from .noted_cells import NotedCells
from .token_blocks import HeldBack, blocks, with_last


class Room(NamedTuple):
    """Tokens that may be fed before cells are evicted, before they are scored, and before positions end."""

    until_full: int
    until_scored: int
    until_limit: int


class BlockLoop(NotedCells):
    """Keeps a cache within `budget` cells per head, plus one block of spare cells (KeyDiff eq. 6).

    is_resized: the budget is another one since the last eviction
    logits_row: token of the last batch that the next token's logits come from; -1 = the last one
    """

    def __init__(
        self,
        cache: Cache,
        options: Options,
        budget: int,
        n_ctx_train: int,
        decoder: Decoder | None = None,
    ) -> None:
        """decoder: decodes for all block loops of the context; None = for this one alone"""
        super().__init__(cache, options, n_ctx_train)
        self.budget = budget
        self.is_resized = False
        self.logits_row = -1
        self._decoder = Decoder(options) if decoder is None else decoder
        self._part_ends: Sequence[int] = ()  # ends of the parts of the current probe

    def begin(self) -> None:
        """Empty the cells, and forget all notes on them."""
        super().begin()
        self.is_resized = False

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
            self.archive.asked = ()
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
            if not (yield from self._recall(ROUNDS, while_recalling, lambda: self._compact(probe, is_last=True))):
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

    def _recall(self, rounds: int, goes_on: GoesOn, evict: Callable[[], Feeding[None]]) -> Feeding[bool]:
        """Fill free cells with what the end of the last prompt needs; returns False if it was stopped.

        It makes way for a move of the ceiling, and begins again after it. A second move waits for its end.

        evict: goes under the budget of the move
        """
        archive, cache, n_cells = self.archive, self.cache, recalled_cells(self._options.spare_cells)
        was_evicted = cache.n_cells != cache.n_past
        if archive is None or not archive.asked or n_cells == 0 or not was_evicted:
            return True
        self.archive_fed()
        if archive.n_tokens == 0:
            return True
        started = time.perf_counter()

        def makes_way(*n_heads: int) -> Feeding[bool]:
            yield RECALLING
            return not self._is_moved and (yield from goes_on(*n_heads))

        def recall(goes_on: GoesOn) -> Feeding[Recalled]:
            return recalling(archive, cache, lambda: self._probe(archive.asked), n_cells, rounds, goes_on)

        self._is_moved = False
        recalled = yield from recall(makes_way)
        if self._is_moved:
            if self.is_resized:
                yield from evict()
            recalled = yield from recall(goes_on)
        self.work.recalled_cells += recalled.n_cells
        self.work.scanned_tokens += recalled.n_scanned
        self.work.recalls += 1
        self.work.recall_s += time.perf_counter() - started
        return recalled.is_whole

    def stepping(self, token: int, *, drafts: bool = False, goes_on: GoesOn = ALWAYS) -> Feeding[None]:
        """Feed one generated token and compute its logits. Evicts when `evict_every` spare cells are filled.

        drafts: decode a draft with the token, or accept the token from the last draft. `logits_row` is then the row of
            the next token's logits
        goes_on: as `while_recalling` of `reading`, for the recall after an eviction
        """
        if drafts and self._speculation.has_decoded(token, self._decoder.n_steps):
            self._make_room(1)
            self._coming = self.cache.n_past, [token]
            self.cache.accept()
            self._note_fed()
            self._speculation.draft.pop(0)
            self.logits_row += 1
            self.work.accepted += 1
        else:
            spare = self._options.spare_cells
            yield from self._feed(
                [token], want_logits=True, spare=spare, generating=True, drafts=drafts, goes_on=goes_on
            )

    def _feed(
        self,
        tokens: list[int],
        *,
        want_logits: bool,
        spare: int | None = None,
        probe: Sequence[int] = (),
        generating: bool = False,
        drafts: bool = False,
        goes_on: GoesOn = ALWAYS,
    ) -> Feeding[None]:
        if not tokens:
            return
        self._make_room(len(tokens))
        self._speculation.draft = []
        spare = self._options.block if spare is None else spare
        n_new, usage = len(tokens), self.cache.usage
        room = self._room(usage, spare)
        full = self.is_resized or n_new > room.until_full
        is_due = full or n_new > room.until_scored
        if is_due:
            yield from self._compact(probe, generating=generating, full=full)
            if generating and full:
                yield from self._recall(1, goes_on, lambda: self._compact(generating=True))
            usage = self.cache.usage
            room = self._room(usage, spare)
        drafts = drafts and not self._decoder.is_shared
        draft = self._speculation.propose(tokens[0], min(room) - 1, self.log) if drafts else []
        started = time.perf_counter()
        self._coming = usage.n_past, tokens
        row = yield Feed(self.cache, tokens, want_logits, draft)
        seconds = time.perf_counter() - started
        self._note_fed()
        if generating and is_due:
            self._write_taken()
        self.logits_row = row
        self.work.decode_s += seconds
        self.work.drafted += len(draft)
        if drafts:
            self._speculation.decoded(draft, seconds, self._decoder.n_steps)

    def _room(self, usage: Usage, spare: int) -> Room:
        """Return how many tokens may be fed before cells are evicted or scored. spare: cells beyond the budget"""
        options, limit = self._options, self.repositioning.limit
        return Room(
            min(self.budget + spare - usage.n_cells, usage.n_free - options.probe_cells),
            options.block - (usage.n_past - self._scored_at),
            sys.maxsize if limit is None else limit - usage.n_past,
        )

    def _compact(
        self, probe: Sequence[int] = (), *, generating: bool = False, full: bool = False, is_last: bool = False
    ) -> Feeding[None]:
        options = self._options
        full |= self.is_resized or self.cache.n_cells > self.budget
        probed = full and len(probe) > 0
        if self._since_probe is not None:
            self._since_probe += self.cache.n_past - self._scored_at
        due = full or options.parsed_policy.carries
        if due or (self.archive is not None and self.archive.keeper is not None):
            self._take_fed()  # also without an eviction, since the rows are laid out anew
        if not due:
            self._scored_at = self.cache.n_past
            return
        if not probed:
            self._since_probe = None
        elif is_last or self._since_probe is None or self._since_probe > UBATCH:
            yield from self._ask(probe)
        reposition = full and self.repositioning.due()
        self._compacting = result = structs.Compaction()
        self.cache.compact(
            self._options.parsed_focus if probed else options.parsed_policy,
            self.budget,
            n_sink=options.sinks,
            recent=options.recent_cells(self.budget, probed=probed),
            pinned=self.pinned,
            probed=probed,
            generating=generating,
            reposition=reposition,
            result=result,
        )
        self._note_scored()
        self._compacting = None
        self.is_resized &= not full
        self.work.evictions += full
        self.work.repositions += reposition
        self.work.evicted_cells += result.n_evicted
        self.work.score_s += result.score_us / 1e6
        self.work.compact_s += result.move_us / 1e6
        self.work.crossed_bytes += result.crossed_bytes
        self.work.staged_layers += result.n_staged

    def _ask(self, probe: Sequence[int]) -> Feeding[None]:
        """Feed a probe. Its queries score again if they can be turned, and if scores do not add up."""
        yield from self._probe(probe, self._part_ends)
        self.work.probes += 1
        again = self.cache.repositions and not self._options.parsed_focus.carries
        self._since_probe = 0 if again else None

    def _probe(self, tokens: Sequence[int], part_ends: Sequence[int] = ()) -> Feeding[None]:
        """Have the queries of these tokens score. The tokens leave no cells."""
        started = time.perf_counter()
        yield Feed(self.cache, tokens, part_ends=part_ends)
        self.work.probe_s += time.perf_counter() - started
