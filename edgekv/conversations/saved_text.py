"""The turns of a saved session as text. The vocabulary of its model is enough for that; no weight is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from edgekv.binding.model import Model
from edgekv.errors import SessionFileError
from edgekv.models.header import header_digest, read_header
from edgekv.options import Options
from edgekv.store.log import TokenLog, joined
from edgekv.store.snapshot_file import open_snapshot_file

from .session_codec import said_of
from .session_file import fill_log


@contextmanager
def saved_turns(path: Path, model: Path) -> Iterator[Iterator[tuple[str, Iterator[str]]]]:
    """Yield the role of each turn of a session file, and its text in pieces.

    model: the model that it was saved with

    Raises SessionFileError for a damaged file, one without a history, and one of another model; ModelError.
    """
    with ExitStack() as stack:
        file = stack.enter_context(open_snapshot_file(path))
        if "tokens" not in file or "marks" not in file:
            raise SessionFileError(
                f"{file.name} holds cells and no words: it was saved by a session without a history; "
                "open one with history=True"
            )
        header = read_header(model)
        if saved_digest(file.header.values) != header_digest(model, header):
            raise SessionFileError(
                f"{file.name} was not saved with the model {str(model)!r}; name the one that it was saved with"
            )
        vocabulary = stack.enter_context(Model(model, Options(), header=header, no_alloc=True))
        log = stack.enter_context(closing(TokenLog()))
        fill_log(log, file, vocabulary.n_vocab)
        pending = said_of(file.header).pending
        if any(token >= vocabulary.n_vocab for token in pending):
            raise file.damaged("it holds tokens that the model does not know")
        log.make_room(len(pending))
        log.follow(pending, len(log) + len(pending))
        yield ((turn.role, vocabulary.text(log.tokens(turn.start, turn.stop))) for turn in joined(log.turns()))


def saved_digest(about: Mapping[str, Any]) -> str | None:
    """Return the digest of the model that a session was saved with, by its header; None if it is not there."""
    saved_with = about.get("saved_with")
    digest = saved_with.get("model_digest") if isinstance(saved_with, dict) else None
    return digest if isinstance(digest, str) else None
