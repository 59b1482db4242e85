"""The runtime, which a program opens first: a model under a ceiling, and its cells. Also plans and surveys of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from .binding.model import Context, Model
from .engine.controller import Controller
from .engine.guard import Guard
from .engine.local import LocalEngine
from .engine.snapshot import Snapshot
from .engines import open_engine, plan_for, survey_for
from .errors import ConfigError, ModelNotFoundError, SessionError
from .models.registry import find_model, is_remote
from .planning.choice import Request
from .planning.estimate import Plan
from .planning.surveys import Survey
from .policies import Policy
from .session import Session


class Runtime:
    """A model loaded under a memory ceiling. Use it in `with`, or close it.

        with edgekv.Runtime(memory="256MiB") as rt:
            for piece in rt.session().ask("Who is the stranger?", files=["novel.txt"]):
                print(piece, end="")

    model: path or name of a GGUF model (docs/pull.md); None = the default one
    memory: ceiling of the whole process: bytes, a size such as "256MiB", or "25%" of the memory that it may use
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

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        memory: int | str = "256MiB",
        policy: str | Policy = "keydiff",
        budget: int | None = None,
        block: int | None = None,
        kv_type: str | None = None,
        threads: int | None = None,
        isolated: bool = False,
        **further: object,
    ) -> None:
        self.closed = True
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
        self.plan: Plan = self._engine.plan
        self.options = self.plan.settle(request.options)
        self.load_s = time.perf_counter() - started
        self.closed = False

    def session(self, system: str | None = None, *, start: Snapshot | None = None) -> Session:
        """Open a conversation, beside those that are open. Its system message, if one is given, is never evicted.

        start: what it begins with, in place of a system message: all that was read and said when this was taken

        One session has the cells at a time. The others rest, in `resting` bytes of memory or in `rest_dir`. Raises
        SessionError if the runtime is closed, and for a snapshot of another one; BudgetError if the system message
        leaves no cells.
        """
        if self.closed:
            raise SessionError("this runtime is closed; open another")
        if start is not None:
            if system is not None:
                raise ConfigError("a session has the system message of the snapshot in start; leave system out")
            if start.runtime != self._engine.mark:
                raise SessionError("the snapshot in start is of another runtime; read the text in this one")
            system = start.system
        return Session(self._engine, self._engine.converse(system), start, able_to_focus=self.options.focus)

    def close(self) -> None:
        """Free the model and its cells. Open sessions end with it; a reply that is under way is cancelled first."""
        if self.closed:
            return
        self.closed = True
        self._engine.close()

    @property
    def worker_pid(self) -> int | None:
        """The process id of an isolated runtime's worker; None = the model is in this process."""
        return self._engine.worker_pid

    @property
    def model(self) -> Model:
        """The loaded model. Raises ConfigError in an isolated runtime, as do `context`, `controller` and `guard`."""
        return self._local().model

    @property
    def context(self) -> Context:
        """The llama.cpp context with the cells."""
        return self._local().context

    @property
    def controller(self) -> Controller:
        """What feeds and compacts the cells."""
        return self._local().controller

    @property
    def guard(self) -> Guard:
        """Compares what the process holds with the ceiling."""
        return self._local().guard

    def _local(self) -> LocalEngine:
        if not isinstance(self._engine, LocalEngine):
            raise ConfigError("isolated=True keeps model and cells in another process; open the runtime without it")
        return self._engine

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def plan(model: str | os.PathLike[str] | None = None, **options: object) -> Plan:
    """Return the plan of a runtime without loading its weights; arguments as for `Runtime`.

    A model "hf:OWNER/MODEL:QUANT" that is not on this machine is planned from its header on the hub (docs/pull.md).
    Raises CeilingError if no plan fits, ConfigError for options that cannot work, and ModelError for a file that
    cannot be used.
    """
    request = Request.of(**options)
    with _header_of(model, request) as (path, name):
        return _named(plan_for(path, request), name)


def survey(model: str | os.PathLike[str] | None = None, **options: object) -> Survey:
    """Return a plan, what limits it, and what else would fit; arguments and errors as for `plan`."""
    request = Request.of(**options)
    with _header_of(model, request) as (path, name):
        found = survey_for(path, request)
        return replace(found, plan=_named(found.plan, name), with_more=_named(found.with_more, name))


@contextmanager
def _header_of(model: str | os.PathLike[str] | None, request: Request) -> Iterator[tuple[Path, Path]]:
    """A file with the header of a model, and the name for it in plans: both its path, unless it is on a hub alone."""
    with ExitStack() as stack:
        try:
            path = name = find_model(model)
        except ModelNotFoundError:
            if not is_remote(model):
                raise
            from .hub.remote import look_up  # few plans need it

            remote = stack.enter_context(look_up(str(model), request.options.ceiling_bytes))
            path, name = remote.header, Path(remote.file.name)
        yield path, name


def _named(plan: Plan, name: Path) -> Plan:
    return replace(plan, model=name)
