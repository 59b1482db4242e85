"""Checks of what holds for sessions and their loop whatever the scores are, made behind their backs."""

from __future__ import annotations

import itertools
import os
from typing import Any

from expected_log import ExpectedLog, Said
from stepped_loop import SteppedLoop

import edgekv
from edgekv.archive.recalling import recalled_cells
from edgekv.conversations.conversation import Conversation
from edgekv.conversations.sequence_state import SequenceState
from edgekv.generation.sampler import GREEDY
from edgekv.loop.loop import Loop

ROOMY_CELLS = 400  # more than any program fills
NEXT_TOKEN = 20
REST = -1  # position of the cell that stands for all tokens that a head lacks
Cells = tuple[tuple[int, ...], ...]  # positions that each head holds


class SessionChecks:
    """Checks one session at the ends of its operations. All raise AssertionError."""

    def __init__(self, runtime: edgekv.Runtime) -> None:
        self.log = ExpectedLog()
        self._options = runtime.options
        self._channel: SteppedLoop = runtime._engine.channel  # type: ignore[assignment]

    def read(self, session: edgekv.Session, text: str, said: Said | None = None) -> None:
        """Check what was read and said since the last check."""
        n_said, n_told = self.log.read(text, _tokens(_state(session)), self._engine.loaded.model.piece, said), 0
        if said is not None:
            n_told = session.stats.generated_tokens
        assert n_told == n_said, f"{n_told} tokens were generated, and {n_said} are in the log"

    def rewind(self, session: edgekv.Session, n: int) -> None:
        """Check that the session has gone back to n tokens."""
        state = _state(session)
        assert state.n_past == n, f"{state.n_past} tokens after a rewind to {n}"
        self.log.rewind(n, _tokens(state))

    def state(self, session: edgekv.Session, *, may_be_open: bool = False) -> tuple[Any, ...]:
        """Check all that a session has; return what a copy of it must have.

        may_be_open: its reply was left, and nobody has collected it
        """
        state, conversation = _state(session), session._served
        while not state.is_loaded:  # others may have had the cells in the same step
            session.kept_positions(0, 0)
        assert state not in self._engine.slots.swap, "a loaded session has a copy that is swapped out"
        loop = self._loop
        assert may_be_open or loop._of(conversation) is None, "a reply that is over is still open"
        cells, n_past = self._cells(state), state.n_past
        assert state.block_loop.cache.n_past == n_past == state.figures[0]
        history, tokens = state.history, _tokens(state)
        assert history is not None
        assert len(history.log) == n_past, f"the log has {len(history.log)} tokens, and {n_past} were fed"
        self.log.check(tokens, n_past)
        self.log.note_end(n_past)
        places = history.checkpoints.positions
        assert places == sorted(set(places)), f"checkpoints at {places}"
        assert not places or places[-1] <= n_past, f"a checkpoint at {places[-1]} of {n_past} tokens"
        turns = state.turns
        assert turns == self.log.states[-1], f"the turns are {turns}, not {self.log.states[-1]}"
        for n in (n_past // 3, n_past // 2, n_past):  # a rewind goes by these
            turns_there, expected = history.log.state_at(n), self.log.states[n]
            assert turns_there == expected, f"the turns are {turns_there} after {n} tokens, not {expected}"
        self._check_archive(state, cells)
        return n_past, tokens, turns, cells

    def same(self, session: edgekv.Session, before: tuple[Any, ...]) -> None:
        """Check that a session is what it was when `state` returned this."""
        now = self.state(session)
        assert now == before, f"{now} is not {before}"

    def fresh(self, session: edgekv.Session, runtime: edgekv.Runtime) -> None:
        """Check that a session without evictions goes on as a fresh one that reads all of its log."""
        if self._options.budget < ROOMY_CELLS:
            return
        tokens = [*self.log.tokens, NEXT_TOKEN]
        with runtime.session(history=True) as fresh:
            told, expected = (
                "".join(it.continue_from(tokens, max_tokens=3, sampling=GREEDY)) for it in (session, fresh)
            )
            assert told == expected, f"{told!r} after {tokens}, not {expected!r}"

    def _cells(self, state: SequenceState) -> Cells:
        """Return the positions that each head holds, which are checked."""
        cache, options = state.block_loop.cache, self._options
        n_past, budget = cache.n_past, state.block_loop.budget
        assert cache.n_cells <= budget + options.block, f"{cache.n_cells} cells, and the budget is {budget}"
        kept = [n for layer in cache.budgets() for n in layer]
        most = budget + recalled_cells(options.spare_cells)  # what was recalled for a reply stays beside the budget
        assert sum(kept) <= most * len(kept), f"evictions left {kept} cells, and the budget is {budget}"
        cells = tuple(tuple(cache.positions(*at).tolist()) for at in cache.heads)
        n_sinks, n_recent = options.sinks, options.recent_cells(budget)
        for with_rest in cells:
            assert all(a < b for a, b in itertools.pairwise(with_rest)), f"positions {with_rest}"
            held = with_rest[with_rest[:1] == (REST,) :]
            assert not held or (held[0] >= 0 and held[-1] < n_past), f"{held} of {n_past} tokens"
            sinks = tuple(range(min(n_sinks, n_past)))
            assert held[: len(sinks)] == sinks, f"{held} lacks sinks {sinks}"
            newest = tuple(range(max(0, n_past - n_recent), n_past))
            assert held[len(held) - len(newest) :] == newest, f"{held} lacks the newest tokens of {n_past}"
        return cells

    def _check_archive(self, state: SequenceState, cells: Cells) -> None:
        """Check that every token has a cell in every head, or is archived, and nothing beyond them is."""
        archive, n_past = state.archive, state.n_past
        assert archive is not None
        begin, end = archive.positions
        assert not archive.failure, archive.failure
        assert begin == 0 <= end <= n_past, f"tokens {begin} to {end} of {n_past} are archived"
        for held in cells:
            lacking = set(range(end, n_past)).difference(held)
            assert not lacking, f"tokens {lacking} are neither held nor archived"

    @property
    def _loop(self) -> Loop:
        return self._channel.loop

    @property
    def _engine(self) -> Any:
        return self._loop.engine


def _state(session: edgekv.Session) -> SequenceState:
    conversation: Conversation = session._served  # type: ignore[attr-defined]
    return conversation.state


def _tokens(state: SequenceState) -> list[int]:
    """Return the tokens of the log, and the one that is not fed yet."""
    assert state.history is not None
    log = state.history.log
    return [*log.read(0, len(log)).tolist(), *state.pending]


def check_loop(loop: Loop) -> None:
    """Check what holds between two steps. Raises AssertionError."""
    slots, engine = loop._slots, loop.engine
    for conversation, reply in slots.holders.items():
        assert reply.ended is None, "a reply that is over holds a slot"
        assert loop._replies.get(reply.number) is reply, "a reply that the loop forgot holds a slot"
        assert reply.conversation is conversation
    assert len(slots.holders) <= engine.n_slots, f"{len(slots.holders)} hold the {engine.n_slots} slots"
    assert engine.loaded.decoder.is_shared == (len(slots.holders) > 1)
    assert engine.holding == {conversation.state for conversation in slots.holders}
    answered = [it.conversation for it in loop._replies.values() if it.ended is None]  # perhaps closed meanwhile
    known = {it.state for it in (*loop._conversations.values(), *answered)}
    owners = [it.owner for it in engine.loaded.block_loops if it.owner is not None]
    assert known.issuperset(owners), "a session that is closed has cells"
    assert known.issuperset(engine.slots.swap._swapped), "a session that is closed is swapped out"
    for state in known - set(owners):
        has_copy = state in engine.slots.swap or state.is_in_checkpoint
        assert has_copy == (state.n_past > 0), f"a session of {state.n_past} tokens without cells: copy {has_copy}"


def check_at_rest(loop: Loop) -> int:
    """Check that nothing is left of sessions that are closed or gone; return how many files are open."""
    slots, engine = loop._slots, loop.engine
    left = {
        "conversations": loop._conversations,
        "open replies": loop._replies,
        "feeds": loop._feeding,
        "reports": loop._reporting,
        "waiting": slots.waiting,
        "holders": slots.holders,
        "swapped out": engine.slots.swap._swapped,
        "states": list(engine._states),
        "owners": [it.owner for it in engine.loaded.block_loops if it.owner is not None],
    }
    assert not any(left.values()), f"left at the end: { {name: it for name, it in left.items() if it} }"
    return len(os.listdir("/proc/self/fd"))
