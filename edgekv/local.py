"""The engine in this process: a model, its plan and its cells."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from . import process
from .cache import Cache
from .choice import Request
from .controller import Controller
from .conversation import LocalConversation
from .errors import UnsupportedModelError
from .estimate import cache_params_of
from .guard import Guard
from .model import Context, Model
from .options import Options
from .planner import make_plan


class LocalEngine:
    """An `Engine` whose native side runs in this process. Raises what `Runtime` does."""

    worker_pid = None

    def __init__(self, path: Path, request: Request) -> None:
        self.closed = True
        self.mark = secrets.token_bytes(8)  # of the snapshots that are taken here
        self.plan = make_plan(path, request)
        options = self.options = self.plan.settle(request.options)
        sys.audit("edgekv.runtime", self.plan)  # read where a test's memory is measured (edgekv.testing)
        process.return_freed_memory()
        self.guard = Guard(self.plan)
        self.model = Model(path, options)
        try:
            process.return_freed_memory()  # what loading took beside the model
            self.context = self.model.new_context(self.plan.n_cells, options, n_cells_max=self.plan.n_cells_max)
            cache = _open_cache(self.context, options)
            process.return_freed_memory()
        except BaseException:
            self.model.close()
            raise
        self.controller = Controller(cache, options, self.plan.budget_cells, self.model.n_ctx_train)
        self.closed = False

    def converse(self, system: str | None) -> LocalConversation:
        """A new conversation in empty cells."""
        self.controller.clear()
        return LocalConversation(self, system)

    def close(self) -> None:
        """Free the model and its cells."""
        if self.closed:
            return
        self.closed = True
        self.controller.cache.close()
        self.context.close()
        self.model.close()


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
