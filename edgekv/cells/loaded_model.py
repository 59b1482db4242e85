"""A model that is loaded in this process, and its cells."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekv.binding.cache import Cache
from edgekv.binding.model import Context, Model
from edgekv.errors import CeilingError, GrammarError
from edgekv.memory import process
from edgekv.models.header import Header, header_digest
from edgekv.options import Options
from edgekv.planning.estimate import checked_params
from edgekv.planning.ledger import Ledger
from edgekv.planning.plan import Plan
from edgekv.prompt.template import check_template, rehearse
from edgekv.warmup import register_warmup

from .block_loop import BlockLoop
from .decoder import Decoder
from .memory_guard import MemoryGuard

if TYPE_CHECKING:
    from edgekv.grammar.masks import Matcher, Vocabulary
    from edgekv.grammar.source import Grammar
    from edgekv.grammar.tool_schemas import Verdict


class LoadedModel:
    """A model in this process under its plan, its cells, and the block loops over them, one a slot. Close it.

    ledger: what is held under the plan
    mark: bytes that the snapshots of its cells carry, so that no other engine restores them
    model_digest: identifies the model in a session file
    decoder: decodes for the block loops
    kept_bytes: written so far to keep conversations and their beginnings, without rows
    closed: everything was freed
    """

    def __init__(self, path: Path, header: Header, ledger: Ledger, options: Options, mark: bytes) -> None:
        """header: that of the file, as it was planned"""
        self.ledger, plan = ledger, ledger.plan
        self.options = options
        self.mark = mark
        self.kept_bytes = 0
        self.closed = False
        self.guard = MemoryGuard(plan)
        with ExitStack() as made:
            self.model = made.enter_context(Model(path, options, header=header))
            check_template(self.model, options.chat_template)
            self.model_digest = header_digest(path, self.model.header)
            self._vocabulary = _vocabulary(self.model) if options.grammars else None
            process.return_freed_memory()  # memory that loading took beside the model
            self.context = self.model.new_context(plan.n_cells, options, n_cells_max=plan.n_cells_max)
            made.callback(self.context.close)
            self.decoder = Decoder(options)
            self.block_loops: list[BlockLoop] = []
            for slot in range(options.parallel):
                cache = made.enter_context(closing(open_cache(self.context, options, slot)))
                loop = BlockLoop(cache, options, plan.budget_cells, self.model.n_ctx_train, self.decoder)
                self.block_loops.append(loop)
            process.return_freed_memory()
            ledger.count("kv", lambda: sum(it.cache.n_cells for it in self.block_loops) * plan.cell_bytes)
            self._made = made.pop_all()

    @property
    def plan(self) -> Plan:
        """The plan of now."""
        return self.ledger.plan

    @property
    def block_loop(self) -> BlockLoop:
        """The block loop of the first slot."""
        return self.block_loops[0]

    def learn_vocabulary(self) -> None:
        """Have replies follow grammars, in memory that the plan counts. Raises ConfigError without llguidance."""
        self._vocabulary = _vocabulary(self.model)

    def matcher(self, grammar: Grammar) -> Matcher:
        """Return a matcher that holds a reply to a grammar.

        Raises GrammarError, also if there is no room for a schema that combines many alternatives.
        """
        assert self._vocabulary is not None
        if grammar.multiplies and (lacking := self.room_to_combine(grammar.name)) is not None:
            raise GrammarError(str(lacking)) from lacking  # another try would end as this one
        return self._vocabulary.begin(grammar)

    def room_to_combine(self, name: str) -> CeilingError | None:
        """Return the error for a schema that combines many alternatives; None if there is room. name: the argument's"""
        what = f"what it takes to combine the alternatives of {name}"
        assert self._vocabulary is not None
        n_bytes = self._vocabulary.combining_bytes
        try:
            self.guard.check_room(n_bytes, what, "or give one list of alternatives, no allOf")
        except CeilingError as error:
            return error
        return None

    def judge(self, schema: Mapping[str, Any]) -> Verdict:
        """Compile the schema of a tool, or a part of it, alone. It has room, or combines few alternatives."""
        assert self._vocabulary is not None
        return self._vocabulary.judge(schema)

    def close(self) -> None:
        """Free the model and its cells."""
        self.closed = True
        self._vocabulary = None
        self._made.close()


def _vocabulary(model: Model) -> Vocabulary:
    from edgekv.grammar.masks import Vocabulary  # few runtimes need it

    return Vocabulary(model)


def open_cache(context: Context, options: Options, slot: int = 0) -> Cache:
    """Open the cache of a context's slot. It repositions keys unless reposition is "never", or "auto" and the model
    cannot.
    """
    params = checked_params(context, options)
    params.slot = slot
    return Cache(context, params)


def _rehearse() -> None:
    """Do the work of every reply once, so that Python imports its modules before a plan."""
    for encoding in ("utf-8", "utf-8-sig"):  # encodings of texts
        codecs.lookup(encoding)
    rehearse()


register_warmup(_rehearse)
