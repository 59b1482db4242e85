"""Encodes and decodes the state of a session beside its cells, as values in a snapshot file (docs/sessions.md)."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from edgekv.errors import ConfigError
from edgekv.generation.sampler import MAX_SEED, SamplerState, Sampling
from edgekv.generation.turn_state import Dialogue
from edgekv.prompt.turns import STATES
from edgekv.store.snapshot_header import SnapshotHeader, are_tokens, is_whole

_SAMPLING = {field.name for field in fields(Sampling)}

_TURNS = {"new", "opening", *(state for states in STATES.values() for state in states)}


def header_values(system: str | None, dialogue: Dialogue) -> dict[str, Any]:
    """Return the values of a session: its system message, and the state of the conversation."""
    sampler = None if dialogue.sampler is None else asdict(dialogue.sampler)
    return {"system": system, "turns": dialogue.turns, "pending": list(dialogue.pending), "sampler": sampler}


def system_of(header: SnapshotHeader) -> str | None:
    """Return the system message. Raises SessionFileError."""
    system: str | None = header.value("system", lambda it: it is None or (isinstance(it, str) and _is_text(it)))
    return system


def dialogue_of(header: SnapshotHeader) -> Dialogue:
    """Return the state of the conversation. Raises SessionFileError."""
    return Dialogue(
        header.value("turns", lambda it: isinstance(it, str) and it in _TURNS),
        tuple(header.value("pending", lambda it: are_tokens(it) and len(it) <= 1)),
        _sampler(header),
    )


def _sampler(header: SnapshotHeader) -> SamplerState | None:
    state = header.inner("sampler")
    if state is None:
        return None
    given = state.value("sampling", lambda it: isinstance(it, dict) and it.keys() == _SAMPLING)
    try:
        sampling = Sampling(**given)
    except ConfigError:
        raise header.damaged("its 'sampling' is impossible") from None
    return SamplerState(
        sampling,
        state.value("seed", lambda it: is_whole(it, MAX_SEED)),
        state.value("n_drawn", lambda it: is_whole(it, (1 << 62))),
        tuple(state.value("newest", lambda it: are_tokens(it) and len(it) <= sampling.repeat_last)),
    )


def _is_text(text: str) -> bool:
    """Return True for a text without surrogates, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
