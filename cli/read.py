"""`edgekv read`: texts that are read once, to be asked about again and again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.counting import counted
from edgekv.documents.text_file import read_text
from edgekv.memory.sizes import format_size
from edgekv.prompt.named_files import File, contents_of
from edgekv.prompt.spool import spooled
from edgekv.prompt.text import PARAGRAPH
from edgekv.store.kept_folder import check_unused, is_kept, remove_session
from edgekv.store.ownership import Ownership
from edgekv.store.session_names import path_of, save_as, writable_path_of
from edgekv.store.snapshot_file import sizes_of

from .files import text_files
from .render import print_footer, reading_bar, say
from .shared_options import System, opened, with_common_options

PARTIAL = ".partial"  # ends the name of what was read in part
INTERRUPTED = 130
LEAST_TOKEN_BYTES, BESIDE_TOKENS = 2, 512  # bytes of a text for each token, at least; tokens of template and question


@with_common_options
def read(
    runtime: dict[str, Any],
    save: Annotated[str, typer.Option("--save", metavar="NAME", help="Name to save it under, for `ask --from NAME`.")],
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Texts or documents to read: names, patterns, folders; - for stdin."),
    ] = None,
    question: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Question to read with; again for more. Default: none, or a general one."),
    ] = None,
    system: System = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what has that name, and begin anew where it was read in part.")
    ] = False,
) -> None:
    """Read text files of any length and save the session. `ask --from NAME` asks about it, also next week.

    If there is an archive, it is saved as well, so questions recall what was evicted. Ctrl-C saves the part that was
    read, and the same command goes on from there.
    """
    path, partial, owned = writable_path_of(save), path_of(save + PARTIAL), Ownership()
    if path.exists() and not force:
        raise edgekv.SessionFileError(f"{save!r} was saved before; give another --save, or replace it with --force")
    for replaced in (path, partial):
        owned.note(replaced)
        if force and is_kept(replaced):
            check_unused(replaced)
    with ExitStack() as stack:
        files = stack.enter_context(text_files(file))
        rt = stack.enter_context(opened(runtime))
        if partial.exists() and not force:
            session = stack.enter_context(rt.load_session(partial, keep=is_kept(partial)))
            files = stack.enter_context(_rest_of(session, files, save, system))
        else:
            session = stack.enter_context(_new_session(rt, system))
        _check_disk(path.parent, rt.plan, files, session.n_cells)
        _keep_as_it_is_read(session, rt, partial, force=force)
        n_before = session.n_past
        # one question may have several parts itself
        focus = question[0] if question and len(question) == 1 else question or None
        try:
            if files or not n_before:
                _read(session, files, focus, goes_on=n_before > 0)
        except edgekv.EdgeKVError:
            if session.n_past > n_before:
                _keep_part(session, save, owned)
            raise
        if session.stats.finish_reason == "cancelled":
            _keep_part(session, save, owned)
            raise typer.Exit(INTERRUPTED)
        if force and is_kept(path):
            remove_session(path)
        name = save_as(session.save, save, owned)
        print_footer(session.stats, rt.plan)
    with suppress(OSError, edgekv.SessionFileError):
        remove_session(partial)
    if name != save:
        say(f"{save} was saved by another process meanwhile, and stays as it is", style="")
    say(f"saved as {name}, {sizes_of(path_of(name))}")


def _check_disk(folder: Path, plan: edgekv.Plan, files: Sequence[File], n_filled: int) -> None:
    """Raise SessionFileError if a disk has no room for the session, before hours go into reading.

    A token takes 4 bytes of the log, and stands for about as many of a text; so a short text fills few of the cells.
    Archived rows lie in a file of their own while the text is read, and are copied to that of the session.

    n_filled: cells of a head that are filled already
    """
    n_bytes = sum(os.stat(file).st_size for file in files if os.path.isfile(file))
    n_tokens = n_bytes // LEAST_TOKEN_BYTES + BESIDE_TOKENS
    n_cells = min(plan.n_cells, n_filled + n_tokens)
    archived = min(plan.archive_bytes, n_tokens * plan.archive_token_bytes)
    needed = plan.session_bytes * n_cells // max(1, plan.n_cells) + n_bytes + 2 * archived
    free = shutil.disk_usage(folder).free
    if free < needed:
        remedy = "--archive off, which keeps the cells alone" if archived else "a smaller --memory"
        raise edgekv.SessionFileError(
            f"{str(folder)!r} has {format_size(free)} free, and the session may take {format_size(needed)}; free some, "
            f"or give {remedy}"
        )


def _new_session(runtime: edgekv.Runtime, system: str | None) -> edgekv.Session:
    """A session with a log, by which a reading that was stopped goes on, and chats about the text go back."""
    try:
        return runtime.session(system, history=True, checkpoint_bytes=0)
    except edgekv.SessionFileError:  # the folder for temporary files takes none
        return runtime.session(system)


def _keep_as_it_is_read(session: edgekv.Session, runtime: edgekv.Runtime, partial: Path, *, force: bool) -> None:
    """Have a session kept in a folder from now on, so a kill loses its newest block at most.

    A runtime or a disk that cannot keep it reads all the same.
    """
    if session.kept_in is not None or not runtime.keeps_sessions:
        return
    with suppress(OSError, edgekv.SessionError, edgekv.SessionFileError):
        if force and partial.exists():
            remove_session(partial)
        session.keep(partial)


def _read(session: edgekv.Session, files: Sequence[File], focus: str | list[str] | None, *, goes_on: bool) -> None:
    """Read files; Ctrl-C ends that at the next block."""
    before = signal.signal(signal.SIGINT, lambda *_: session.cancel())
    try:
        with reading_bar() as progress:
            session.read(files=files, focus=focus, goes_on=goes_on, progress=progress)
    finally:
        signal.signal(signal.SIGINT, before)


def _keep_part(session: edgekv.Session, name: str, owned: Ownership) -> None:
    """Save the part that was read, if any of the text was, and say so."""
    try:
        has_text = any(turn.role == "user" for turn in session.turns())
    except edgekv.SessionError:
        say("stopped; nothing is kept, because the folder for temporary files (TMPDIR) takes no log", style="")
        return
    if not has_text:
        session.rewind(0)  # an empty session leaves no folder
        say("stopped before anything of the text was read; nothing is kept", style="")
        return
    kept = name + PARTIAL if session.kept_in is not None else save_as(session.save, name + PARTIAL, owned)
    goes_on = "; the same command goes on from there" if kept == name + PARTIAL else ""
    say(f"stopped; {counted(session.n_past, 'token')} read, saved as {kept}{goes_on}", style="")


@contextmanager
def _rest_of(session: edgekv.Session, files: Sequence[File], name: str, system: str | None) -> Iterator[list[File]]:
    """The texts without their beginning, which a session has read; no file if that is all of them.

    Raises SessionFileError if they begin otherwise.
    """
    if system is not None and system != session.system:
        raise edgekv.SessionFileError(
            f"{name + PARTIAL!r} was read with another system message; give that one, or begin anew with --force"
        )
    turns = [turn for turn in session.turns() if turn.role == "user"]
    if not turns:  # it was killed before anything of the text was read
        yield [*files]
        return
    try:
        if len(turns) != 1:
            raise _OtherTextError
        with spooled(_after(session.text(turns[0]), _joined(files))) as rest:
            say(f"{name}{PARTIAL}: {counted(session.n_past, 'token')} read; going on from there")
            with rest.open(encoding="utf-8") as copy:
                is_empty = not any(line.strip() for line in copy)
            yield [] if is_empty else [rest]
    except _OtherTextError:
        raise edgekv.SessionFileError(
            f"{name + PARTIAL!r} is the beginning of another text; read that one, or begin anew with --force"
        ) from None


class _OtherTextError(Exception):
    """A text does not begin as it should."""


def _joined(files: Sequence[File]) -> Iterator[str]:
    """Texts as a session reads them, one after the other."""
    for i, content in enumerate(contents_of(files)):
        if i:
            yield PARAGRAPH
        for part in content:
            yield from [part] if isinstance(part, str) else read_text(part)


def _after(beginning: Iterable[str], text: Iterator[str]) -> Iterator[str]:
    """Yield the rest of a text after its beginning, piece by piece."""
    at_hand = ""
    for piece in beginning:
        while len(at_hand) < len(piece) and (more := next(text, None)) is not None:
            at_hand += more
        # a model may have put a blank before the text, and half a character may end what was read
        expected = piece if at_hand.startswith(piece) else piece.removeprefix(" ").removesuffix("\ufffd")
        if not at_hand.startswith(expected):
            raise _OtherTextError
        at_hand = at_hand[len(expected) :]
    yield at_hand
    yield from text
