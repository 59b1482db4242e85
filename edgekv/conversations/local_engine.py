"""The engine: a loaded model, and the conversations that take turns with its cells."""

from __future__ import annotations

import logging
import secrets
import sys
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from edgekv.archive.session_archive import Archive
from edgekv.archive.space import ArchiveSpace
from edgekv.cells.loaded_model import LoadedModel
from edgekv.errors import ConfigError, EdgeKVError, SessionFileError, UnsupportedModelError
from edgekv.generation.request import GenerationRequest, Logging
from edgekv.generation.turn_state import Dialogue
from edgekv.memory import process
from edgekv.options import Options
from edgekv.planning.choice import Request
from edgekv.planning.estimate import grammar_bytes
from edgekv.planning.ledger import Ledger, LedgerEntry
from edgekv.planning.moved import moved_plan
from edgekv.planning.plan import Plan
from edgekv.planning.planner import plan_to_load
from edgekv.prompt.template import chat_format
from edgekv.store.kept_folder import is_kept

from .cache_slots import CacheSlots
from .conversation import Conversation
from .history import check_ids
from .history_prompt import HistoryPrompt, history_prompt
from .kept_beginnings import KeptBeginnings
from .kept_session import KeptContents
from .sequence_state import SequenceState
from .session_file import load_log, load_session
from .session_history import SessionHistory
from .swap import SwapSpace, usable_folder

log = logging.getLogger("edgekv")


class LocalEngine:
    """A loaded model and its cells, for the thread of a loop. Raises the errors of `Runtime`.

    ledger: what is held under the plan
    n_slots: conversations that may have cells at a time
    holding: states of those that do not give them up now; at_work: of these the ones whose feed waits for a batch
    mark: bytes that the snapshots of this engine carry, so that no other engine restores them; None = new ones
    """

    def __init__(self, path: Path, request: Request, mark: bytes | None = None) -> None:
        self.mark = secrets.token_bytes(8) if mark is None else mark
        self._opened, header = plan_to_load(path, request)  # has the most cells
        self.ledger = Ledger(self._opened)
        options = self.plan.resolve(request.options)
        self.closed = False
        self.n_slots = options.parallel
        self.holding: set[SequenceState] = set()
        self.at_work: set[SequenceState] = set()
        sys.audit("edgekv.runtime", self.plan)  # read by tests that measure memory (edgekv.testing)
        process.return_freed_memory()
        with ExitStack() as made:
            swap = made.enter_context(closing(_swap_space(self.ledger, options)))
            self.ledger.count("swap", lambda: swap.memory_bytes)
            self.loaded = made.enter_context(closing(LoadedModel(path, header, self.ledger, options, self.mark)))
            self.slots = CacheSlots(self.loaded.block_loops, swap, self.holding, self.at_work)
            made.callback(self.slots.close)
            made.callback(process.hold(self.plan.peak_bytes - self.plan.parts.python))
            self._made = made.pop_all()
        self._archives = ArchiveSpace(options.swap_folder, options.archive_bytes) if options.archives else None
        self._histories: dict[int, HistoryPrompt] = {}  # stored histories by number
        self._states: weakref.WeakSet[SequenceState] = weakref.WeakSet()  # their files go with the engine

    @property
    def plan(self) -> Plan:
        """The plan of now."""
        return self.ledger.plan

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return the entries of the ledger."""
        return self.ledger.entries()

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> Conversation:
        """Begin a conversation. Raises BudgetError if its message leaves no cells.

        logging: keep a log; raises SessionFileError if the disk does not take it, and ConfigError for too small a cap
        """
        history = None if logging is None else SessionHistory(logging, self.plan)
        with self._new_state(history) as state:
            return self._conversation(state, system)

    def load_conversation(
        self, path: Path, instead_of: Conversation | None = None, *, keeps_log: bool = True, keep: bool = False
    ) -> Conversation:
        """Load a saved or kept conversation, by an absolute path, into the cells.

        instead_of: a conversation that gives up its cells, and is not swapped out
        keeps_log: keep the log of the file, if it has one
        keep: append to the folder of a kept session from now on

        Raises SessionFileError, BudgetError or CeilingError if the file does not fit this engine, and SwapError; the
        cells are then as before.
        """
        if is_kept(path):
            return self._load_kept(path, instead_of, keeps_log=keeps_log, keep=keep)
        if keep:
            raise SessionFileError(
                f"{str(path)!r} was saved whole, and nothing is appended to it; load it without keep"
            )
        history = load_log(path, self.loaded, Logging()) if keeps_log else None
        replaced = None if instead_of is None else instead_of.state
        with self._new_state(history) as state:
            system, dialogue = self.slots.claim(
                state, lambda it: load_session(path, self.loaded, it, state.archive), replaced
            )
            state.pinned = state.block_loop.pinned
            return self._conversation(state, system, dialogue)

    def _load_kept(self, path: Path, instead_of: Conversation | None, *, keeps_log: bool, keep: bool) -> Conversation:
        """Load a kept conversation. Arguments and errors as of `load_conversation`."""
        history = SessionHistory(Logging(), self.plan)
        with self._new_state(history) as state:
            found = KeptContents(path, self.loaded, state, "append" if keep else "read")
            state.kept = found.kept
            replaced = None if instead_of is None else instead_of.state
            self.slots.claim(state, lambda it: found.fill(it, state.archive), replaced)
            state.pinned = found.pinned
            conversation = self._conversation(state, found.system, found.dialogue)
            if not keeps_log:
                state.history = None
                state.use_log()
                history.close()
            return conversation

    def keep_beginnings(self, folder: Path) -> None:
        """Have the beginnings that conversations share from now on outlive this engine, and go on with those of before.

        Call it before the first conversation. Raises OSError if the folder cannot be made.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = self.slots.kept_beginnings = KeptBeginnings(folder, self.loaded)
        for path in kept.paths():
            with self._new_state(None) as state:
                beginnings, archive = self.slots.beginnings, state.archive
                try:
                    self.slots.claim(state, lambda it: kept.load(path, it, archive, beginnings))  # noqa: B023
                except EdgeKVError as error:
                    log.warning("%s is not gone on with: %s", path, error)
                self.slots.release(state)

    @property
    def n_kept_bytes(self) -> int:
        """Bytes that were written to keep conversations and beginnings, without rows."""
        return self.loaded.kept_bytes

    @property
    def keeps_sessions(self) -> bool:
        """True if a kept session need not be read again when it is loaded: there is an archive, and rows are enough."""
        return self._archives is not None and self.loaded.block_loop.refills

    def fork(self, conversation: Conversation) -> Conversation:
        """Begin a conversation with all that another one has read and said. It is swapped out until its first use.

        Raises SwapError, and SessionFileError if the disk does not take another log.
        """
        origin = conversation.settled_state()
        with self._new_state(None if origin.history is None else origin.history.fork()) as state:
            forked = self._conversation(state, conversation.system)
            self.slots.copy(origin, state)
            state.begin_as(origin)
            return forked

    def _conversation(self, state: SequenceState, system: str | None, begun: Dialogue | None = None) -> Conversation:
        """Return the conversation of a new state. begun: its dialogue, if it has cells"""
        return Conversation(self.loaded, self.slots, state, system, stored=self._histories, begun=begun)

    @contextmanager
    def _new_state(self, history: SessionHistory | None) -> Iterator[SequenceState]:
        """Yield a new state, which is released if the block fails."""
        archive = None if self._archives is None else Archive(self._archives)
        state = SequenceState(self.loaded.block_loops[0], history, archive)
        self._states.add(state)
        try:
            yield state
        except BaseException:
            self.slots.release(state)
            raise

    def moving(self, ceiling_bytes: int) -> Generator[None, None, Plan]:
        """Go under another ceiling: evict to what fits, and give the memory back; returns the plan.

        Yields while sequences at work have still to evict, at their next block or token. Call it between two steps.

        Raises CeilingError if the least budget does not fit, or that of a session with more pinned tokens, ConfigError
        if cells lie on a device, and SwapError if swapped-out sessions find no room. The ceiling is then as before.
        """
        options, before = self.loaded.options, self.plan
        if options.gpu_layers or options.servers:
            raise ConfigError(
                "the ceiling of a runtime with layers on a device or another machine stays as it is; open one without"
            )
        pinned = (sum(end - first for first, end in state.pinned) for state in self._states)
        n_pinned = max(pinned, default=0)
        moved = moved_plan(self._opened, options, ceiling_bytes, n_pinned=n_pinned)
        try:
            yield from self._going_under(moved)
            while (resident := process.resident_bytes()) > ceiling_bytes:  # the program took memory that no plan knows
                beside = resident - self.plan.peak_bytes  # perhaps more, if planned bytes are not held yet
                yield from self._going_under(
                    moved_plan(self._opened, options, ceiling_bytes, beside, n_pinned=n_pinned)
                )
        except BaseException:
            self.ledger.plan = before
            self._resize()
            raise
        self.loaded.guard.go_under(self.plan)
        return self.plan

    def following_grammars(self) -> Generator[None, None, Plan]:
        """Have replies follow grammars: evict to what fits beside them, if the plan lacks them; returns the plan.

        Yields as `moving`. Raises ConfigError if the options rule grammars out, or cells lie on a device and stay, and
        the errors of `moving`. The plan is then as before.
        """
        before, options = self._opened, self.loaded.options
        if before.parts.grammars:
            return self.plan
        if options.grammars is False or options.gpu_layers or options.servers:
            reason = "grammars=False rules that out" if options.grammars is False else "layers on a device stay there"
            raise ConfigError(
                f"a grammar, a schema or tools take memory, and {reason}; open the runtime with grammars=True"
            )
        n_bytes = grammar_bytes(self.loaded.model.n_vocab, options.parallel)
        self._opened = replace(before, parts=replace(before.parts, grammars=n_bytes))
        try:
            plan = yield from self.moving(self.plan.ceiling_bytes)
            self.loaded.learn_vocabulary()
        except BaseException:
            self._opened = before
            if self.plan.parts.grammars:
                yield from self.moving(self.plan.ceiling_bytes)
            raise
        return plan

    def _going_under(self, plan: Plan) -> Generator[None, None, None]:
        """Give cells up or take them back as a plan has them; yields while sequences at work have still to evict."""
        before, self.ledger.plan = self.plan, plan
        has_fewer = plan.budget_cells < before.budget_cells
        if has_fewer or plan.ceiling_bytes < before.ceiling_bytes:
            self.slots.evict_to(plan.budget_cells, [state for state in self._states if not state.lost])
        if plan.budget_cells != before.budget_cells:
            self._resize()
        while has_fewer and self.slots.evict_late():
            yield
        process.return_freed_memory()

    def _resize(self) -> None:
        for block_loop in self.loaded.block_loops:
            block_loop.resize(self.plan.budget_cells)

    def tokenize(self, text: str, begin: bool, special: bool) -> list[int]:
        """Return the tokens of a text.

        begin: with the tokens that the model expects before a text, and after it
        special: read names of control tokens as these tokens
        """
        return self.loaded.model.tokenize(text, begin=begin, special=special, space_prefix=begin)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Raises InputError for ids that the vocabulary lacks."""
        return "".join(self.loaded.model.text(check_ids(tokens, self.loaded.model.n_vocab)))

    def pieces_of(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token. Raises InputError for ids that the vocabulary lacks."""
        model = self.loaded.model
        return [model.piece(token, special=True) for token in check_ids(tokens, model.n_vocab)]

    def count(self, request: GenerationRequest) -> int:
        """Return the number of tokens of a history. Raises InputError."""
        return history_prompt(request, self.loaded.model, self._histories).prompt().count()

    def prompt_text(self, request: GenerationRequest) -> str:
        """Return the text that a history of messages is read as. Raises InputError."""
        return history_prompt(request, self.loaded.model, self._histories).prompt().text()

    def store_history(self, request: GenerationRequest, folder: str | None) -> tuple[int, int]:
        """Render and tokenise a history into a file in a folder.

        Returns its number, for `GenerationRequest.stored`, and the tokens of its opening.
        """
        number = secrets.randbits(63)  # no other engine has a history of this number
        self._histories[number] = history = HistoryPrompt(request, self.loaded.model).store(folder)
        return number, history.n_opening

    def forget_history(self, number: int) -> None:
        """Remove the file of a stored history."""
        self._histories.pop(number).close()

    def reply_opening(self) -> str:
        """Return the text that the chat template puts before a reply; "" if the model has no usable template."""
        try:
            return chat_format(self.loaded.model, with_system=False).after_user
        except UnsupportedModelError:
            return ""

    def close(self) -> None:
        """Free the model and its cells, and remove the files of all conversations."""
        if not self.closed:
            self.closed = True
            self._made.close()
            for state in self._states:
                state.release()
            for history in self._histories.values():
                history.close()


def _swap_space(ledger: Ledger, options: Options) -> SwapSpace:
    """Return the swap space for sessions. Raises ConfigError for a folder that cannot be used."""
    folder = None if options.swap_folder is None else usable_folder(options.swap_folder)
    evicts = options.swap_full == "evict"
    session_bytes = ledger.plan.session_bytes
    return SwapSpace(ledger, options.swap_memory_bytes, session_bytes, folder, options.swap_dir_bytes, evicts=evicts)
