"""Encodes and decodes the state of a session beside its cells, as values and arrays of a file (docs/sessions.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from edgekv.binding.cache import CacheSnapshot
from edgekv.engine.block_loop_snapshot import BlockLoopSnapshot
from edgekv.engine.speculation import WINDOW
from edgekv.errors import ConfigError, SessionFileError
from edgekv.generation.sampler import MAX_SEED, SamplerState, Sampling
from edgekv.prompt.turns import STATES
from edgekv.store.sections import Section, SectionFile

from .snapshot import Said, Snapshot

MAX_POSITION = 1 << 30
MAX_PINNED = 64  # ranges; a session pins only its beginning
MAX_UNSCORED = 4096  # the longest block
MAX_TOKEN = (1 << 31) - 1
_TURNS = {"new", "opening", *(state for states in STATES.values() for state in states)}


def header_values(snapshot: Snapshot) -> dict[str, Any]:
    """Return the values of a snapshot that are not arrays."""
    said, block_loop = snapshot.said, snapshot.block_loop
    return {
        "system": snapshot.system,
        "turns": said.turns,
        "pending": list(said.pending),
        "sampler": None if said.sampler is None else asdict(said.sampler),
        "pinned": [list(pair) for pair in block_loop.pinned],
        "fresh": block_loop.fresh,
        "is_long": block_loop.is_long,
    } | ({"unscored": list(block_loop.unscored)} if block_loop.unscored else {})


def history_section(history: bytes) -> Section:
    """Return the section of the newest tokens, which drafts are looked up in."""
    return Section.of("history", "I32", np.frombuffer(history, dtype=np.int32))


def snapshot_of(file: SectionFile, cells: CacheSnapshot, runtime: bytes) -> Snapshot:
    """Return the snapshot of a file, with these cells and this runtime's mark. Raises SessionFileError."""
    header = SessionHeader(file)
    system = header.value("system", lambda it: it is None or (isinstance(it, str) and _is_text(it)))
    return Snapshot(
        runtime,
        system,
        Said(
            header.value("turns", lambda it: isinstance(it, str) and it in _TURNS),
            tuple(header.value("pending", lambda it: _are_tokens(it) and len(it) <= 1)),
            _sampler(header),
        ),
        BlockLoopSnapshot(
            cells,
            tuple(map(tuple, header.value("pinned", _are_ranges))),
            header.value("fresh", _is_position),
            header.value("is_long", lambda it: isinstance(it, bool)),
            _history(file),
            tuple(header.optional("unscored", lambda it: _are_tokens(it) and len(it) <= MAX_UNSCORED) or ()),
        ),
    )


class SessionHeader:
    """The header of a session file: plain values, each checked when it is read."""

    def __init__(self, file: SectionFile, values: Mapping[str, Any] | None = None) -> None:
        self._file = file
        self._values = file.about if values is None else values

    def value(self, name: str, sound: Callable[[Any], bool]) -> Any:
        """Return a value. Raises SessionFileError unless sound(value) is true."""
        if name not in self._values or not sound(self._values[name]):
            raise self._file.damaged(f"its {name!r} is impossible")
        return self._values[name]

    def optional(self, name: str, sound: Callable[[Any], bool]) -> Any:
        """Return a value, as `value`; None = the header lacks it."""
        return self.value(name, sound) if name in self._values else None

    def inner(self, name: str) -> SessionHeader | None:
        """Return the header within a value, or None."""
        values = self.value(name, lambda it: it is None or isinstance(it, dict))
        return None if values is None else SessionHeader(self._file, values)

    def damaged(self, how: str) -> SessionFileError:
        return self._file.damaged(how)


def _sampler(header: SessionHeader) -> SamplerState | None:
    state = header.inner("sampler")
    if state is None:
        return None
    given = state.value("sampling", lambda it: isinstance(it, dict) and it.keys() == {f.name for f in fields(Sampling)})
    try:
        sampling = Sampling(**given)
    except ConfigError:
        raise header.damaged("its 'sampling' is impossible") from None
    return SamplerState(
        sampling,
        state.value("seed", lambda it: _is_whole(it, MAX_SEED)),
        state.value("n_drawn", lambda it: _is_whole(it, (1 << 62))),
        tuple(state.value("newest", lambda it: _are_tokens(it) and len(it) <= sampling.repeat_last)),
    )


def _history(file: SectionFile) -> bytes:
    """Return the newest tokens."""
    if file.n("history") > WINDOW:
        raise file.damaged("its 'history' is too long")
    tokens = file.array("history")
    if tokens.dtype != np.int32 or (len(tokens) and tokens.min() < 0):
        raise file.damaged("its 'history' holds what is no token")
    return tokens.tobytes()


def _is_whole(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_position(value: object) -> bool:
    return _is_whole(value, MAX_POSITION)


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(_is_whole(token, MAX_TOKEN) for token in value)


def _are_ranges(value: object) -> bool:
    """Return True for pairs [p0, p1) that are ascending and apart, and few enough to check for every cell."""
    if not isinstance(value, list) or len(value) > MAX_PINNED:
        return False
    if not all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_position, pair)) for pair in value):
        return False
    ends = [end for pair in value for end in pair]
    return ends == sorted(ends)


def _is_text(text: str) -> bool:
    """Return True for a text without surrogates, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
