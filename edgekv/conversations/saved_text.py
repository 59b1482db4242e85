"""The turns of a saved session as text. The vocabulary of its model is enough for that; no weight is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from edgekv.binding.model import Model
from edgekv.errors import SessionFileError
from edgekv.models.header import header_digest, read_header
from edgekv.options import Options
from edgekv.store.kept_folder import is_kept, newest, open_journal
from edgekv.store.log import TokenLog, joined
from edgekv.store.snapshot_file import open_snapshot_file

from .kept_session import read_log
from .session_codec import dialogue_of
from .session_file import fill_log

Check: TypeAlias = Callable[[Mapping[str, Any], str], None]  # takes the values of a session, and its name


@contextmanager
def saved_turns(path: Path, model: Path) -> Iterator[Iterator[tuple[str, Iterator[str]]]]:
    """Yield the role of each turn of a session file, and its text in pieces.

    model: the model that it was saved with

    Raises SessionFileError for a damaged file, one without a history, and one of another model; ModelError.
    """
    with ExitStack() as stack:
        log = stack.enter_context(closing(TokenLog()))
        read = _read_kept if is_kept(path) else _read_file
        header = read_header(model)
        vocabulary = stack.enter_context(Model(model, Options(), header=header, no_alloc=True))
        digest = header_digest(model, header)

        def check(about: Mapping[str, Any], name: str) -> None:
            if saved_digest(about) != digest:
                raise SessionFileError(
                    f"{name} was not saved with the model {str(model)!r}; name the one that it was saved with"
                )

        pending = read(path, log, vocabulary.n_vocab, check)
        log.make_room(len(pending))
        log.follow(pending, len(log) + len(pending))
        yield ((turn.role, vocabulary.text(log.tokens(turn.start, turn.stop))) for turn in joined(log.turns()))


def _read_file(path: Path, log: TokenLog, n_vocab: int, check: Check) -> tuple[int, ...]:
    """Fill a log with that of a session file; returns the tokens that were generated and not fed yet.

    check: raises an error for a session of another model
    """
    with open_snapshot_file(path) as file:
        if "tokens" not in file or "marks" not in file:
            raise SessionFileError(
                f"{file.name} holds cells and no words: it was saved by a session without a history; "
                "open one with history=True"
            )
        check(file.header.values, file.name)
        fill_log(log, file, n_vocab)
        pending = dialogue_of(file.header).pending
        if any(token >= n_vocab for token in pending):
            raise file.damaged("it holds tokens that the model does not know")
        return pending


def _read_kept(path: Path, log: TokenLog, n_vocab: int, check: Check) -> tuple[int, ...]:
    """Fill a log with that of a kept session, as it is now; returns as `_read_file`."""
    with closing(open_journal(path, "look")) as journal:
        found = newest(journal)
        check(found.header.values, journal.name)
        return read_log(journal, found, log, n_vocab).pending


def saved_digest(about: Mapping[str, Any]) -> str | None:
    """Return the digest of the model that a session was saved with, by its header; None if it is not there."""
    saved_with = about.get("saved_with")
    digest = saved_with.get("model_digest") if isinstance(saved_with, dict) else None
    return digest if isinstance(digest, str) else None
