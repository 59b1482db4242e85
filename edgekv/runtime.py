"""The runtime, which a program opens first: a model under a ceiling, and its sessions."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, NoReturn, cast

from .arguments import check_flag, check_names, path_of, shown
from .conversations.snapshot import Snapshot
from .engines import open_engine
from .errors import ConfigError, SessionError, SessionFileError
from .generation.request import Logging, check_text
from .memory.sizes import parse_size_or_none
from .models.catalog import find_model
from .moving_ceiling import MovingCeiling
from .other_names import RUNTIME, SYSTEM, OtherNames
from .planning.choice import Request
from .policies import Policy
from .session import Session


class Runtime(OtherNames, MovingCeiling):
    """A model loaded under a memory ceiling. Use it in `with`, or close it.

    One that is dropped is freed when its sessions and replies are, too, with a ResourceWarning.

        with edgekv.Runtime(memory="256MiB") as rt:
            for piece in rt.session().ask("Who is the stranger?", files=["novel.txt"]):
                print(piece, end="")

    model: path or name of a GGUF model (docs/pull.md); None = the default one
    memory: ceiling of the whole process: bytes, a size such as "256MiB", or "25%" of the memory that it may use; None =
        256 MiB for a model that comes with edgekv; for others what their trained context needs, at most half of what is
        free (docs/memory.md)
    policy: spec or Policy that scores the cells
    budget: cells that each (layer, KV head) keeps; None = as many as fit
    block: tokens fed between two evictions; None = the best that fits (docs/memory.md)
    kv_type: "f16", "q8_0" or "q4_0"; None = the best that fits
    threads: None = one for every processor
    isolated: load the model in a worker process; the ceiling is then for that process alone, and a WorkerError is
        raised if it dies or hangs
    further: other fields of `edgekv.Options`

    Raises CeilingError, before anything is loaded, if the plan does not fit; ConfigError for options that cannot work;
    ModelError for a file that cannot be used.
    """

    _meant: ClassVar[Mapping[str, str]] = RUNTIME

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *nameless: NoReturn,
        memory: int | str | None = None,
        policy: str | Policy | None = None,
        budget: int | None = None,
        block: int | None = None,
        kv_type: str | None = None,
        threads: int | None = None,
        isolated: bool = False,
        **further: object,
    ) -> None:
        if nameless:
            raise ConfigError(f"{shown(nameless[0])} has no name; give options by name, as in memory='256MiB'")
        started = time.perf_counter()
        request = Request.of(
            memory=memory,
            policy=policy,
            budget=budget,
            block=block,
            kv_type=kv_type,
            threads=threads,
            isolated=isolated,
            **further,
        )
        path = find_model(model)
        self._engine = open_engine(path, request)
        self.options = self.plan.resolve(request.options)
        self.load_s = time.perf_counter() - started
        if self.options.yields:
            self._begin_yielding(float(self.options.yields))
        self.closed = False

    if not TYPE_CHECKING:

        def __call__(self, *_arguments, **_options):
            raise TypeError(f"'Runtime' object is not callable; {RUNTIME['generate']}")

    def session(
        self,
        system: str | None = None,
        *,
        start: Snapshot | None = None,
        history: bool | str | os.PathLike[str] = False,
        checkpoint_bytes: int | str | None = None,
        **options: NoReturn,
    ) -> Session:
        """Open a conversation, beside those that are open. Its system message, if one is given, is never evicted.

        start: a snapshot to begin with, in place of a system message
        history: remember the tokens that are read and generated, so that the session can go back (`rewind`,
            `continue_from`). They lie in private files in this folder, removed with the session; True = the folder
            that TMPDIR names
        checkpoint_bytes: the most that checkpoints may take there, bytes or a size; 0 = no checkpoints, and the session
            goes back by reading from the beginning; None = 256 MiB, or four checkpoints if these take more

        One session has the cells at a time. The others are swapped out to memory or to the disk. Raises
        SessionError if the runtime is closed, and for a snapshot of another one, or without a history if one is wanted;
        BudgetError if the system message leaves no cells, SessionFileError if the folder takes no files, and
        ConfigError for too few bytes.
        """
        self._check_open()
        if options:
            check_names(options, ("system", "start", "history", "checkpoint_bytes"), "Runtime.session", SYSTEM)
        logging = _logging(history, checkpoint_bytes)
        if start is not None:
            if system is not None:
                raise ConfigError("a session has the system message of the snapshot in start; leave system out")
            if not isinstance(start, Snapshot) or start.runtime != self._engine.mark:
                raise SessionError("the snapshot in start is of another runtime; read the text in this one")
            if logging is not None and start.log is None:
                raise SessionError("the snapshot in start is of a session without a history; take it with history=True")
            system = start.system
        if system is not None:
            check_text(system, "give the system message as a text, and messages to session.reply(messages)")
        return self._opened(self._engine.new_conversation(system, logging), system, start)

    def load_session(
        self,
        path: str | os.PathLike[str],
        *,
        instead_of: Session | None = None,
        history: bool = True,
        keep: bool = False,
    ) -> Session:
        """Go on with a session that `Session.save` or `keep` wrote, in this process or another (docs/sessions.md).

        instead_of: an open session, which ends when the file is loaded; if that fails, it goes on. It is not
            swapped out, so it needs no room
        history: keep the log that the file has, if it has one, in the folder that TMPDIR names; False = leave it
        keep: go on to append to the folder that `Session.keep` made; False = it stays as it is

        The model and the policy must be those that it was saved with. More cells than this runtime holds are evicted,
        and cells of another kv_type are converted.
        Raises SessionFileError for a file that is damaged or cannot be gone on with, and for a folder that another
        process appends to or, with keep=True, has open; BudgetError if what it protects
        does not fit the budget, CeilingError if there is no room for evicting, and SwapError if there is none for
        the session that has the cells.
        """
        self._check_open()
        check_flag("history", history)
        check_flag("keep", keep)
        if keep and not history:
            raise ConfigError("keep=True appends to the history of a session; leave history=False out")
        path = Path(os.path.abspath(path_of("path", path)))
        load = partial(self._engine.load_conversation, path, keeps_log=history, keep=keep)
        kept_in = path if keep else None
        if instead_of is None:
            return self._opened(*load(), kept_in=kept_in)
        if not isinstance(instead_of, Session) or not instead_of.is_of(self._engine):
            raise SessionError("the session in instead_of is of another runtime; load the file in that one")
        with instead_of.giving_way() as number:
            return self._opened(*load(number), kept_in=kept_in)

    def keep_beginnings(self, folder: str | os.PathLike[str]) -> None:
        """Have the beginnings that histories share outlive this runtime in a folder, and go on with those of before.

        Call it before the first session. Raises SessionFileError if the folder cannot be used.
        """
        self._check_open()
        path = Path(os.path.abspath(path_of("folder", folder)))
        try:
            self._engine.call("keep_beginnings", path)
        except OSError as error:
            raise SessionFileError(
                f"folder={str(path)!r} cannot be used: {error.strerror or error}; name one that can be written to"
            ) from error

    @property
    def n_kept_bytes(self) -> int:
        """Bytes that were written to keep sessions and beginnings, without rows."""
        self._check_open()
        return cast(int, self._engine.call("n_kept_bytes"))

    @property
    def keeps_sessions(self) -> bool:
        """True if `Session.keep` works: there is an archive, and the model needs no more than its rows to go on."""
        self._check_open()
        return cast(bool, self._engine.call("keeps_sessions"))

    def _opened(
        self, number: int, system: str | None, start: Snapshot | None = None, kept_in: Path | None = None
    ) -> Session:
        return Session(self._engine, number, system, start, able_to_focus=self.options.focus, kept_in=kept_in)

    def close(self) -> None:
        """Free the model and its cells. Open sessions end with it; a reply that is under way is cancelled first."""
        if self.closed:
            return
        self.closed = True
        self._end_yielding()
        self._engine.close()

    @property
    def holds_snapshot(self) -> bool:
        """True if the plan leaves room for one snapshot of full cells, as `Session.snapshot` takes it."""
        room = self.plan.ceiling_bytes - self.plan.peak_bytes
        return self.options.snapshot_copies * self.plan.session_bytes <= room

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _logging(history: bool | str | os.PathLike[str], checkpoint_bytes: int | str | None) -> Logging | None:
    if history is False or history is None:
        return None
    folder = None if history is True else os.path.abspath(path_of("history", history))
    return Logging(folder, parse_size_or_none(checkpoint_bytes))
