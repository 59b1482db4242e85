"""Beginnings that histories share: states after their first tokens, on the disk, for all conversations of an engine."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from edgekv.cells.block_loop import BlockLoop
from edgekv.errors import ArchiveError, SessionFileError
from edgekv.store.temp_array import WINDOW, temp_file

from .stored_snapshot import StoredSnapshot

SHORTEST = 8  # tokens; a shorter beginning is read as fast as its file
MAX_BEGINNINGS = 64  # each is an open file
DIGEST_BYTES = 16


class BeginningKey(NamedTuple):
    """Identity of a beginning.

    system: the pinned system message of the conversation; None = nothing is pinned
    digest: of the tokens, by `digests`
    turned: the keys of the whole history are turned from the first eviction (`Repositioning.turns_from_start`)
    """

    n_past: int
    system: str | None
    digest: bytes
    turned: bool


class Beginning(NamedTuple):
    """A conversation after the first tokens of a history.

    is_whole: nothing was evicted, so every token has its cells
    turns: the state of its turns, one of `prompt.turns.Turns`
    """

    key: BeginningKey
    is_whole: bool
    turns: str
    stored: StoredSnapshot

    @property
    def is_there(self) -> bool:
        """True unless its file was removed."""
        return self.stored.close.alive

    def load(self, block_loop: BlockLoop) -> bool:
        """Put the block loop into this state; returns False if the file is gone. A damaged file is removed."""
        if not self.is_there:
            return False
        try:
            self.stored.load(block_loop)
            if self.is_whole:  # no key was turned, however long the history was that it was read for
                block_loop.repositioning.clear()
        except (OSError, SessionFileError, ArchiveError):
            self.stored.close()
        return self.is_there


class Beginnings:
    """The beginnings of one engine. The least recently used ones make room for others.

    folder: folder of the files; None = that of TMPDIR
    limit: returns the bytes that all of them may take now
    """

    def __init__(self, folder: str | None, limit: Callable[[], int]) -> None:
        self._folder = folder
        self._limit = limit
        self._all: list[Beginning] = []  # the least recently used one first

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(beginning.stored.nbytes for beginning in self._all)

    @property
    def lengths(self) -> list[int]:
        """The tokens of each, the least recently used one first."""
        return [beginning.key.n_past for beginning in self._all]

    @property
    def are_kept(self) -> bool:
        """True if there may be any."""
        return self._limit() > 0

    def longest(
        self,
        tokens: Iterable[int],
        system: str | None,
        n_tokens: range,
        *,
        evicted: bool,
        turned: bool,
    ) -> Beginning | None:
        """Return the longest beginning of a history; None = there is none.

        n_tokens: lengths that it may have
        evicted: something of it may have been evicted; turned: as it must have been read then
        """
        self._all = [it for it in self._all if it.is_there]
        possible = [
            it
            for it in self._all
            if it.key.system == system
            and it.key.n_past in n_tokens
            and (it.is_whole or (evicted and it.key.turned == turned))
        ]
        found = digests(tokens, (it.key.n_past for it in possible))
        possible = [it for it in possible if it.key.digest == found[it.key.n_past]]
        longest = max(possible, key=lambda it: it.key.n_past, default=None)
        if longest is not None:
            self._all.remove(longest)
            self._all.append(longest)
        return longest

    def keep(self, key: BeginningKey, turns: str, block_loop: BlockLoop) -> None:
        """Keep the state of a block loop, with what its archive has.

        It is left out if there is no room for it, or the disk does not take it.
        """
        room = self._limit() - block_loop.stored_bytes
        if room < 0:
            return
        self.shrink(room, most=MAX_BEGINNINGS - 1)
        is_whole = block_loop.cache.n_cells == key.n_past
        archive = block_loop.archive
        archived = None if archive is None else archive.share(block_loop.cache, key.n_past)
        with suppress(OSError):
            stored = StoredSnapshot(temp_file(self._folder), block_loop, archived)
            self._all.append(Beginning(key, is_whole, turns, stored))

    def forget(self, beginning: Beginning) -> None:
        """Remove a beginning."""
        self._all.remove(beginning)
        beginning.stored.close()

    def shrink(self, n_bytes: int, *, most: int = MAX_BEGINNINGS) -> None:
        """Remove the least recently used ones, until the others take at most n_bytes and are at most `most`."""
        while self._all and (self.nbytes > n_bytes or len(self._all) > most):
            self.forget(self._all[0])

    def close(self) -> None:
        """Remove all of them."""
        self.shrink(0, most=0)


def digests(tokens: Iterable[int], lengths: Iterable[int]) -> dict[int, bytes]:
    """Return a digest of the first n tokens for each length n. There must be as many tokens as the longest length."""
    found: dict[int, bytes] = {}
    coming, digest, n = iter(tokens), hashlib.blake2b(digest_size=DIGEST_BYTES), 0
    for length in sorted(set(lengths)):
        while n < length:
            some = array("i", itertools.islice(coming, min(WINDOW, length - n)))
            assert some, "there are fewer tokens"
            digest.update(some.tobytes())
            n += len(some)
        found[length] = digest.digest()
    return found
