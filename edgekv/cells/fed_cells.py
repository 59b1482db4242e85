"""The cells of a slot: fed, scored and compacted, with notes that agree with the cells after any exception."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgekv.archive.session_archive import Archive
from edgekv.binding import structs
from edgekv.binding.cache import Cache, Usage
from edgekv.options import UBATCH, Options
from edgekv.store.log import TokenLog

from .decoder import Decoder
from .feeds import Feed, Feeding
from .repositioning import Announced, Repositioning
from .speculation import Speculation
from .work import Work

Fed = tuple[int, Sequence[int]]  # first position, and the tokens that are fed from there
NOTHING: Fed = (0, ())


class Room(NamedTuple):
    """Tokens that may be fed before cells are evicted, before they are scored, and before positions end."""

    until_full: int
    until_scored: int
    until_limit: int


class FedCells:
    """The cells of a slot, kept within `budget` cells per head, plus one block of spare cells (KeyDiff eq. 6).

    An exception may come between a call of the library and the notes on it. `settle` then takes the notes again.

    pinned: position ranges [p0, p1) that are never evicted
    log: notes the tokens of every feed; None = no log
    archive: takes the rows of all tokens before cells are evicted, and gives them back; None = no archive
    owner: the conversation that has the cells; None = no conversation has them
    watch: called with the tokens of every feed, while all of them are still in the cache; None = no watcher
    is_resized: the budget is another one since the last eviction
    logits_row: token of the last batch that the next token's logits come from; -1 = the last one
    """

    def __init__(
        self, cache: Cache, options: Options, budget: int, n_ctx_train: int, decoder: Decoder | None = None
    ) -> None:
        """decoder: decodes for all block loops of the context; None = for this one alone"""
        self.cache = cache
        self.repositioning = Repositioning(cache, options, n_ctx_train)
        self.pinned: tuple[tuple[int, int], ...] = ()
        self.work = Work()
        self.log: TokenLog | None = None
        self.archive: Archive | None = None
        self.owner: object | None = None
        self.watch: Callable[[Sequence[int]], None] | None = None
        self.budget = budget
        self.is_resized = False
        self.logits_row = -1
        self._options = options
        self._decoder = Decoder(options) if decoder is None else decoder
        self._speculation = Speculation(min(options.n_draft, cache.shape.n_exact - 1))
        self._scored_at = 0  # n_past at the last scoring
        self._coming = NOTHING  # tokens of a feed, until everything about them is noted
        self._compacting: structs.Compaction | None = None  # result of a compaction, until it is noted
        self._since_probe: int | None = None  # tokens fed since the last probe; None = its queries may not score again
        self._part_ends: Sequence[int] = ()  # ends of the parts of the current probe

    def clear(self) -> None:
        """Start over with an empty cache, fresh counters and no log."""
        self.begin()
        self.log = self.archive = None
        self.pinned = ()
        self.work = Work()

    def begin(self) -> None:
        """Empty the cells, and forget all notes on them."""
        self.forget_open()
        self.cache.clear()
        self.repositioning.clear()
        self._scored_at = 0
        self._speculation.earlier.restore(b"")
        self.is_resized = False

    @property
    def earliest(self) -> int:
        """The fewest tokens to which `drop_to` can go back.

        After an eviction nothing is dropped: cells were chosen with later tokens, or a question, in mind.
        """
        cache = self.cache
        return cache.n_past - (cache.n_droppable if cache.n_cells == cache.n_past else 0)

    def drop_to(self, n: int) -> None:
        """Go back to n tokens, at least `earliest`: drop the cells of all later ones."""
        self.forget_open()
        if n < self.cache.n_past:
            self.cache.drop(self.cache.n_past - n)
        self._scored_at = min(self._scored_at, n)
        self._speculation.earlier.cut(n)
        self.repositioning.clear()  # nothing was evicted, so no key was turned

    def settle(self) -> None:
        """Take the notes that an exception prevented, and drop a draft.

        Call it before the next use, even if the last one failed.
        """
        self._speculation.drop()
        self._since_probe = None
        self._note_fed()
        if self._compacting is not None and (self._compacting.score_us > 0 or self._compacting.n_evicted > 0):
            self._scored_at = self.cache.n_past
        self._compacting = None
        self.repositioning.settle()

    def forget_open(self) -> None:
        """Forget the notes that are still open, because other cells take the place of theirs."""
        self._coming, self._compacting = NOTHING, None
        self._speculation.drop()
        self._since_probe = None

    @property
    def waiting(self) -> tuple[Fed, Announced]:
        """The notes on a feed that waits, which no snapshot has, for `wait_again`."""
        return self._coming, self.repositioning.announced

    def wait_again(self, waiting: tuple[Fed, Announced]) -> None:
        """Take the notes on a feed that waits, after its cells were restored."""
        self._coming, self.repositioning.announced = waiting

    def _feed(
        self,
        tokens: list[int],
        *,
        want_logits: bool,
        spare: int | None = None,
        probe: Sequence[int] = (),
        generating: bool = False,
        drafts: bool = False,
        after_evicting: Callable[[], Feeding[object]] | None = None,
    ) -> Feeding[None]:
        """Feed tokens that fit a block. Before, cells are evicted or scored if that is due.

        spare: cells beyond the budget that may be filled; None = a block
        drafts: decode a draft with the token, or accept the token from the last draft
        """
        if not tokens or (drafts and self._has_accepted(tokens[0])):
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
            if full and after_evicting is not None:
                yield from after_evicting()
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
        self.work.drafted_tokens += len(draft)
        if drafts:
            self._speculation.decoded(draft, seconds, self._decoder.n_steps)

    def _has_accepted(self, token: int) -> bool:
        """Give a generated token its cell if it is the next one of the draft, which was decoded with its logits."""
        if not self._speculation.has_decoded(token, self._decoder.n_steps):
            return False
        self._make_room(1)
        self._coming = self.cache.n_past, [token]
        self.cache.accept()
        self._note_fed()
        self._speculation.draft.pop(0)
        self.logits_row += 1
        self.work.accepted_tokens += 1
        return True

    def _make_room(self, n_tokens: int) -> None:
        """Reserve room in the log before tokens get cells, so that every fed token is in the log, whatever fails."""
        if self.log is not None:
            self.log.make_room(n_tokens)

    def _note_fed(self) -> None:
        """Note the coming tokens that have their cells. Each note knows its position, so it may be taken again."""
        first, tokens = self._coming
        n_past = self.cache.n_past
        if not tokens or n_past <= first:
            return
        fed = tokens[: n_past - first]
        if self.log is not None:
            self.log.follow(fed, n_past)
        if self._speculation.n_most:
            self._speculation.earlier.follow(fed, n_past)
        self._coming = NOTHING
        if self.watch is not None:
            self.watch(fed)

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
        if self.archive is not None and full and (not generating or self.is_resized):
            self.archive.brought = self.archive.needed = (
                None  # a reply goes on without it, or recalls again under its new budget
            )
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
            beside=None if self.archive is None else self.archive.brought,
            within=None if self.archive is None else self.archive.needed,
            reposition=reposition,
            result=result,
        )
        self._scored_at = self.cache.n_past
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

    def archive_fed(self) -> None:
        """Archive the tokens that were fed since the last time."""
        self._take_fed()
        self._write_taken()

    def _take_fed(self) -> None:
        """Have the archive take the rows of these tokens, so that their cells may be evicted.

        First it writes what it took before. So a device computes a block while the rows of the one before are written.
        """
        self._archive_by(lambda archive: archive.take(self.cache, self._options.block))

    def _write_taken(self) -> None:
        """Have the archive write what it took, where no more is taken soon."""
        self._archive_by(Archive.write)

    def _archive_by(self, step: Callable[[Archive], None]) -> None:
        archive = self.archive
        if archive is None:
            return
        started, n_before = time.perf_counter(), archive.written_bytes
        step(archive)
        self.work.archived_bytes += archive.written_bytes - n_before
        self.work.archive_s += time.perf_counter() - started
