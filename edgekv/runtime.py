"""A model, its plan and its cells, loaded and ready for a conversation."""

from __future__ import annotations

import os
import sys
import time
import weakref
from types import TracebackType

from . import process
from .cache import Cache
from .choice import Request
from .controller import Controller
from .errors import SessionError, UnsupportedModelError
from .estimate import Plan, cache_params_of
from .guard import Guard
from .model import Context, Model
from .models.registry import find_model
from .options import Options
from .planner import make_plan
from .policies import Policy
from .session import Session


class Runtime:
    """A model under a memory ceiling. Use it in `with`, or close it.

        with edgekv.Runtime(memory="256MiB") as rt:
            for piece in rt.session().ask("Who is the stranger?", files=["novel.txt"]):
                print(piece, end="")

    model: path or known name of a GGUF model; None = the default one
    memory: ceiling of the whole process: bytes, a size such as "256MiB", or "25%" of what there is
    budget: cells each (layer, KV head) keeps; None = as many as fit
    block, kv_type: None = what serves best of what fits (docs/memory.md)
    Further options: see `edgekv.Options`.

    Raises CeilingError before anything is loaded when the plan does not fit, ConfigError for impossible options,
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
            **further,
        )
        path = find_model(model)
        self.plan: Plan = make_plan(path, request)
        self.options = self.plan.settle(request.options)
        sys.audit("edgekv.runtime", self.plan)  # read where a test's memory is measured (edgekv.testing)
        process.return_freed_memory()
        self.guard = Guard(self.plan)
        self.model = Model(path, self.options)
        try:
            self.context = self.model.new_context(self.plan.n_cells, self.options, n_cells_max=self.plan.n_cells_max)
            cache = _open_cache(self.context, self.options)
        except BaseException:
            self.model.close()
            raise
        self.controller = Controller(cache, self.options, self.plan.budget_cells, self.model.n_ctx_train)
        self._session: weakref.ref[Session] | None = None
        self.load_s = time.perf_counter() - started
        self.closed = False

    def session(self, system: str | None = None) -> Session:
        """Open a conversation, with a system message that is never evicted if one is given.

        A runtime's cells hold one session at a time. Raises SessionError while another is open, BudgetError when
        the system message leaves no cells.
        """
        if self.closed:
            raise SessionError("this runtime is closed; open another")
        other = self._session() if self._session is not None else None
        if other is not None and other._runtime is not None:
            raise SessionError("another session holds this runtime's cells; close it, or open another runtime")
        self.controller.clear()
        session = Session(self, system)
        self._session = weakref.ref(session)
        return session

    def close(self) -> None:
        """Free the model and its cells. An open session ends with it."""
        if self.closed:
            return
        self.closed = True
        self.controller.cache.close()
        self.context.close()
        self.model.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _open_cache(context: Context, options: Options) -> Cache:
    """The cache of a context; it repositions keys where that is wanted, and with "auto" only where it is possible."""
    params = cache_params_of(options)
    try:
        return Cache(context, params)
    except UnsupportedModelError:
        if options.reposition != "auto":
            raise
        params.repositions = False
        return Cache(context, params)
