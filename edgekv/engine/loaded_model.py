"""A model in this process, loaded under its plan, and its cells."""

from __future__ import annotations

import codecs
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from edgekv.binding.cache import Cache
from edgekv.binding.model import Context, Model
from edgekv.errors import ConfigError
from edgekv.grammar.source import Grammar
from edgekv.memory import process
from edgekv.memory.holdings import hold
from edgekv.models.head_shares import find_shares
from edgekv.models.header import header_digest
from edgekv.options import Options
from edgekv.planning.choice import Request
from edgekv.planning.estimate import Plan, checked_params
from edgekv.planning.planner import make_plan
from edgekv.prompt.template import rehearse
from edgekv.sessions.cache_slot import CacheSlot
from edgekv.sessions.snapshot import new_mark
from edgekv.sessions.swap import SwapMemory, SwapSpace
from edgekv.sessions.swap_folder import SwapFolder
from edgekv.warmup import register_warmup

from .block_loop import BlockLoop
from .block_replay import BlockReplay
from .memory_guard import MemoryGuard
from .opened import Opened

if TYPE_CHECKING:
    from edgekv.grammar.masks import Matcher, Vocabulary


class LoadedModel(Opened):
    """A model in this process under its plan, and its cells. Raises the errors of `Runtime`.

    mark: bytes that the snapshots of this engine carry, so that no other engine restores them; None = new ones
    model_digest: identifies the model in a session file
    """

    def __init__(self, path: Path, request: Request, mark: bytes | None = None) -> None:
        self.mark = new_mark() if mark is None else mark
        self.plan = make_plan(path, request)
        options = self.options = self.plan.resolve(request.options)
        sys.audit("edgekv.runtime", self.plan)  # read by tests that measure memory (edgekv.testing)
        process.return_freed_memory()
        self.guard = MemoryGuard(self.plan)
        with ExitStack() as made:
            swap = made.enter_context(closing(_swap_space(self.plan, options)))
            self.model = made.enter_context(Model(path, options))
            self.model_digest = header_digest(path, self.model.header)
            self._vocabulary = _vocabulary(self.model) if options.grammars else None
            process.return_freed_memory()  # memory that loading took beside the model
            self.context = self.model.new_context(self.plan.n_cells, options, n_cells_max=self.plan.n_cells_max)
            made.callback(self.context.close)
            cache = made.enter_context(closing(open_cache(self.context, options)))
            share_heads(cache, path, options)
            process.return_freed_memory()
            block_replay = BlockReplay.of(self.model, options)
            self.block_loop = BlockLoop(cache, options, self.plan.budget_cells, self.model.n_ctx_train, block_replay)
            self.slot = CacheSlot(self.block_loop, swap)
            made.callback(self.slot.close)
            made.callback(hold(self.plan.peak_bytes - self.plan.parts.python))
            self._made = made.pop_all()
        self.opened()

    def matcher(self, grammar: Grammar) -> Matcher:
        """Return a matcher that holds a reply to a grammar.

        Raises GrammarError, CeilingError if there is no room, and ConfigError without grammars=True.
        """
        if self._vocabulary is None:
            raise ConfigError(
                f"{grammar.name} needs a runtime opened with grammars=True, which plans memory for what it takes"
            )
        if grammar.multiplies:
            what = f"what it takes to combine the alternatives of {grammar.name}"
            self.guard.check_room(self._vocabulary.combining_bytes, what, "or give a schema without allOf")
        return self._vocabulary.begin(grammar)

    def close(self) -> None:
        """Free the model and its cells."""
        if self.closed:
            return
        self.closed = True
        self._vocabulary = None
        self._made.close()


def _vocabulary(model: Model) -> Vocabulary:
    from edgekv.grammar.masks import Vocabulary  # few runtimes need it

    return Vocabulary(model)


def _swap_space(plan: Plan, options: Options) -> SwapSpace:
    """Return the swap space for sessions. Raises ConfigError for a folder that cannot be used."""
    folder = None if options.swap_dir is None else SwapFolder(Path(options.swap_dir))
    room = SwapMemory(plan, options.swap_memory_bytes)
    return SwapSpace(room, plan.session_bytes, folder, options.swap_dir_bytes, evicts=options.swap_full == "evict")


def open_cache(context: Context, options: Options) -> Cache:
    """Open the cache of a context. It repositions keys unless reposition is "never", or "auto" and the model cannot."""
    return Cache(context, checked_params(context, options))


def share_heads(cache: Cache, path: Path, options: Options) -> None:
    """Give the cache the table of head shares of its model if a policy needs one. Raises ConfigError without it."""
    if options.divides_by_table:
        heads = [cache.layer_heads(layer)[0] for layer in range(cache.shape.n_layer)]
        cache.share_by(find_shares(path, heads).cells)


def _rehearse() -> None:
    """Do the work of every reply once, so that Python imports its modules before a plan."""
    for encoding in ("utf-8", "utf-8-sig"):  # encodings of texts
        codecs.lookup(encoding)
    rehearse()


register_warmup(_rehearse)
