"""The cache of a context, from Python: feed tokens, compact, and copy and restore cells."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgekv.counting import counted
from edgekv.errors import ConfigError, EdgeKVError
from edgekv.memory.pages import new_pages
from edgekv.policies import Policy

from . import library, structs
from .held_cells import HeadPositions, HeldCells
from .model import Context
from .policy import NativePolicy

MOST_CELLS = 2**32 - 1  # the largest count of the library; no head holds as many


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CacheSnapshot:
    """The cells of a cache as they were, for `Cache.restore`."""

    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshot; they grow with the cells used."""
        return self.data.nbytes


class Usage(NamedTuple):
    """Tokens fed, cells used, and tokens that may still be fed, as `Cache` has them."""

    n_past: int
    n_cells: int
    n_free: int


class Cache(HeldCells):
    """Cells of every (layer, KV head) of a context's slot, and which token each holds. Close it before the context."""

    def __init__(self, context: Context, params: structs.CacheParams | None = None) -> None:
        """params: the slot, and what the policies need, from `binding.policy.cache_params`; None = only keys."""
        self._handle = c.c_void_p()
        params = structs.CacheParams() if params is None else params
        library.call("edgekv_cache_open", context.handle, c.byref(params), c.byref(self._handle))
        self._library = library.load()
        self._context = context
        self._policies: dict[Policy, NativePolicy] = {}
        self._query_rows = max(params.n_query_rows, params.n_probe_rows)
        self.n_query_rows = int(params.n_query_rows)  # newest queries of the text that the cache keeps
        self.repositions = bool(params.repositions)
        self.shape = context.shape()
        self.n_overwritten = 0  # restores and clears so far; each may have replaced the cells

    @property
    def handle(self) -> c.c_void_p:
        """The cache, for calls of the library."""
        return self._handle

    def close(self) -> None:
        """Free the bookkeeping."""
        if self._handle:
            self._library.edgekv_cache_free(self._handle)
            self._handle = c.c_void_p()

    @property
    def n_cells(self) -> int:
        """Cells used per head, on average, rounded up."""
        return int(self._library.edgekv_cache_n_cells(self._handle))

    @property
    def n_free(self) -> int:
        """Tokens that can be fed, or probed with, before a compaction."""
        return int(self._library.edgekv_cache_n_free(self._handle))

    @property
    def n_past(self) -> int:
        """Position of the next token: tokens fed so far."""
        return int(self._library.edgekv_cache_n_past(self._handle))

    @property
    def usage(self) -> Usage:
        """The values of `n_past`, `n_cells` and `n_free` now."""
        library, handle = self._library, self._handle
        n_cells, n_free = library.edgekv_cache_n_cells(handle), library.edgekv_cache_n_free(handle)
        return Usage(int(library.edgekv_cache_n_past(handle)), int(n_cells), int(n_free))

    @property
    def rope_past(self) -> int:
        """Position that RoPE will give the next token. It is n_past until keys are repositioned, then less."""
        return int(self._library.edgekv_cache_rope_past(self._handle))

    @property
    def n_droppable(self) -> int:
        """Newest tokens that `drop` can take: all since the last compaction, if the policy and the model allow it."""
        return int(self._library.edgekv_cache_n_droppable(self._handle))

    @property
    def bookkeeping_bytes(self) -> int:
        """Bytes held beyond the context's own."""
        return int(self._library.edgekv_cache_bytes(self._handle))

    @property
    def snapshot_bytes(self) -> int:
        """Bytes that a snapshot would take now."""
        return self.snapshot_bytes_beside(None)

    def snapshot_bytes_beside(self, archive: c.c_void_p | None) -> int:
        """Return the bytes that a snapshot would take now without the rows that an archive has; None = a whole one."""
        return int(self._library.edgekv_cache_snapshot_bytes(self._handle, archive))

    def clear(self) -> None:
        """Drop every cell; the next token is fed at position 0."""
        self._overwrite("edgekv_cache_clear")

    def drop(self, n: int) -> None:
        """Drop the cells of the newest n tokens, at most `n_droppable`, as if they had never been fed."""
        self._overwrite("edgekv_cache_drop", n)

    def snapshot(self) -> CacheSnapshot:
        """A copy of every used cell, of what it carries, and of the newest queries; not of logits or a last probe."""
        data = new_pages(self.snapshot_bytes)
        self.copy_snapshot(0, data)
        data.flags.writeable = False
        return CacheSnapshot(data)

    def copy_snapshot(self, first: int, into: npt.NDArray[np.uint8], archive: c.c_void_p | None = None) -> None:
        """Fill `into` with the bytes of a snapshot from byte `first` on, without the rows that an archive has."""
        library.call("edgekv_cache_save", self._handle, archive, first, into.ctypes.data, into.nbytes)

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Put the cells back into the state of a snapshot. A snapshot can be restored again and again.

        Raises ConfigError for a snapshot of another kind, or one with more cells than there are, and leaves the cache
        as it was.
        """
        data = snapshot.data
        self._overwrite("edgekv_cache_restore", data.ctypes.data, data.nbytes)

    def restore_numbers(self, data: npt.NDArray[np.uint8]) -> None:
        """Restore the part of a snapshot before its rows. Call `restore_rows` next for the rows, or `clear`."""
        self._overwrite("edgekv_cache_restore_numbers", data.ctypes.data, data.nbytes)

    def restore_rows(self, first: int, rows: npt.NDArray[np.uint8], archive: c.c_void_p | None = None) -> None:
        """Restore rows at the place that they have in a snapshot of now, from its byte `first` on.

        archive: that without whose rows it was taken; None = it is whole
        """
        library.call("edgekv_cache_restore_rows", self._handle, archive, first, rows.ctypes.data, rows.nbytes)

    def restore_archived(self, archive: c.c_void_p) -> None:
        """Restore the rows that an archive has. Raises ArchiveError if they cannot be read; call `clear` then."""
        library.call("edgekv_cache_restore_archived", self._handle, archive)

    def _overwrite(self, name: str, *arguments: object) -> None:
        """Call a function that replaces the cells, unless the library refuses it."""
        self.n_overwritten += 1
        try:
            library.call(name, self._handle, *arguments)
        except EdgeKVError:
            self.n_overwritten -= 1
            raise

    def feed(self, tokens: Sequence[int], *, want_logits: bool = False) -> None:
        """Decode tokens at the next positions; at most a block, and at most the free cells.

        Raises NativeError, and leaves the cache as it was, when there is no room or decoding fails.
        """
        array = (c.c_int32 * len(tokens))(*tokens)
        library.call("edgekv_cache_feed", self._handle, array, len(tokens), want_logits)

    @staticmethod
    def feed_together(feeds: Sequence[tuple[Cache, Sequence[int], bool]]) -> list[int]:
        """Feed caches of one context in one step, each its tokens, with the logits of the last one if they are wanted.

        Returns the row of each one's logits. Raises NativeError, and leaves every cache as it was, as `feed` does.
        """
        arrays = [(c.c_int32 * len(tokens))(*tokens) for _, tokens, _ in feeds]
        parts = (structs.Part * len(feeds))(
            *(
                structs.Part(cache._handle.value, c.addressof(array), len(array), want_logits)
                for array, (cache, _, want_logits) in zip(arrays, feeds, strict=True)
            )
        )
        library.call("edgekv_cache_feed_together", parts, len(feeds))
        return [part.logits_row for part in parts]

    def decode_with(self, n_threads: int) -> None:
        """Feed single tokens with so many threads from now on; results do not depend on the number."""
        self._context.decode_with(n_threads)

    def feed_draft(self, token: int, draft: Sequence[int]) -> None:
        """Decode a token and its draft, with logits for each: row 0 is the token's, row 1 that of draft[0].

        The draft is in no cell. Anything but `accept` drops it. Raises NativeError as `feed` does.
        """
        array = (c.c_int32 * len(draft))(*draft)
        library.call("edgekv_cache_feed_draft", self._handle, token, array, len(draft))

    def accept(self) -> None:
        """Feed the draft's first token, which is decoded already. Raises NativeError if its logits are not finite."""
        library.call("edgekv_cache_accept", self._handle)

    def probe(self, tokens: Sequence[int], part_ends: Sequence[int] = ()) -> None:
        """Decode a probe on top of the cache, keep its queries for the next compaction, and remove its cells again.

        part_ends: how many tokens come before the end of each of its parts, (P,) ascending; none = it is one part. Each
            part scores by itself, and a cell has the largest of these scores

        Raises NativeError or ConfigError; the cells are as before in any case.
        """
        array = (c.c_int32 * len(tokens))(*tokens)
        ends = (c.c_uint32 * len(part_ends))(*part_ends) if part_ends else None
        library.call("edgekv_cache_probe", self._handle, array, len(tokens), ends, len(part_ends))

    def compact(
        self,
        policy: Policy,
        budget: int,
        *,
        n_sink: int = 0,
        recent: int = 0,
        pinned: tuple[tuple[int, int], ...] = (),
        probed: bool = False,
        generating: bool = False,
        budgets: Sequence[Sequence[int]] | None = None,
        beside: HeadPositions | None = None,
        within: HeadPositions | None = None,
        reposition: bool = False,
        result: structs.Compaction | None = None,
    ) -> structs.Compaction:
        """Evict all but `budget` cells of each head, or as the policy divides them; returns cells evicted and times.

        probed: score by the queries of the last probe
        generating: the tokens fed since the last compaction were generated
        budgets: cells that each head keeps, layer by layer and head by head, at most `budget` on average
        beside: positions whose cells stay beside these; a head may lack some
        within: positions whose cells stay within the budget, as the protected ones do; likewise
        reposition: turn the keys that stay to adjacent RoPE positions, if cells are evicted
        result: is filled and returned, so that it is known even if an interrupt follows the compaction

        Times are in microseconds. Raises BudgetError if the protected cells exceed the budget, NativeError if a score
        is not finite or the cache was opened without what the policy reads, and whatever a custom scorer raises. The
        cache is then as before.
        """
        native = self._policies.get(policy)
        if native is None:
            native = self._policies[policy] = NativePolicy(policy)
        protection = structs.Protection.of(n_sink, recent, pinned)
        flat = None if budgets is None else [n for layer in budgets for n in layer]
        if flat is not None and len(flat) != self.shape.n_head_total:
            named, n_heads = counted(len(flat), "head"), self.shape.n_head_total
            raise ConfigError(f"budgets for {named} do not fit a model of {n_heads}; give one a head")
        params = structs.CompactionParams(
            c.pointer(native.fields),
            c.pointer(protection),
            budget,
            probed,
            generating,
            reposition,
            None if flat is None else (c.c_uint32 * len(flat))(*flat),
            *self._addresses(beside),
            *self._addresses(within),
        )
        result = structs.Compaction() if result is None else result
        native.call("edgekv_cache_compact", self._handle, c.byref(params), c.byref(result))
        return result

    def _addresses(self, given: HeadPositions | None) -> tuple[int | None, int | None]:
        """Return where counts and positions lie. Raises ConfigError unless they are those of each head."""
        if given is None:
            return None, None
        n_heads = self.shape.n_head_total
        if len(given.counts) != n_heads or len(given.positions) != given.counts.sum():
            positions, named = counted(len(given.positions), "position"), counted(len(given.counts), "head")
            raise ConfigError(
                f"{positions} of {named} that are to stay do not fit a model of {n_heads}; give those of each head"
            )
        return given.counts.ctypes.data, given.positions.ctypes.data

    def allow(self, n_cells: int) -> None:
        """Use n_cells of each head on average, of those that there are, from the next compaction or clear on.

        The memory of all other rows then goes back to the system. A larger number takes it again as cells are filled.
        Raises ConfigError for more than there are.
        """
        library.call("edgekv_cache_allow", self._handle, n_cells)

    def holds(self, cells: npt.NDArray[np.int64]) -> bool:
        """Return True if the rows can be divided into so many cells of every head, (n_heads,)."""
        numbers, held = np.minimum(cells, MOST_CELLS).astype(np.uint32), c.c_int32()
        library.call("edgekv_cache_holds", self._handle, numbers.ctypes.data, len(numbers), c.byref(held))
        return held.value != 0
