"""Random programs of sessions with archives, whose cells are compared with a plain model of each text."""

from __future__ import annotations

import itertools
import random

import pytest
from archive_model import ArchiveModel
from small import words

from edgekv.generation.sampler import GREEDY

N_STEPS = 14
ARCHIVED = {"archive": "4MiB", "reposition": "never"}
VARIANTS = [  # sessions without the cells lie in memory, or on the disk beside their archive
    {"policy": "keydiff", "swap_memory": 0},
    {"policy": "snapkv+ada", "kv_type": "q8_0", "swap_memory": "64MiB"},
    {"policy": "tova", "parallel": 2, "repack": False, "swap_memory": 0},
    {"policy": "keydiff+ada", "kv_type": "q4_0", "swap_memory": 0},
]
HEADS = list(itertools.product(range(2), range(2)))
pytestmark = pytest.mark.usefixtures("talkative")


class Modelled:
    """A session, and the model of its text."""

    def __init__(self, session, model=None):
        self.session, self.model = session, model or ArchiveModel(HEADS)
        self.snapshots = []

    @property
    def state(self):
        return self.session._conversation.state

    def note(self, fed):
        """Note tokens that were just fed; what was evicted and recalled before them is in the cells."""
        cache = self.state.block_loop.cache
        self.model.cut(cache.n_past - len(fed))  # a session that went back may feed some tokens once more
        self.model.feed(cache, len(fed))

    def check(self):
        """Every cell has the row that its token once left in this text, and the figures are those of the cells."""
        cache = self.session._conversation._swapped_in().cache
        self.model.cut(cache.n_past)
        self.model.held = {at: set(cache.positions(*at).tolist()) for at in HEADS}
        self.model.check(cache)
        begin, end = self.state.archive.positions
        n_lacking = sum(end - begin - len(held & {*range(begin, end)}) for held in self.model.held.values())
        assert abs(self.state.archive.n_recallable(cache) - n_lacking / len(HEADS)) <= 1


class Program:
    """Sessions of a runtime that take turns, and their models."""

    def __init__(self, runtime, chance, folder):
        self.runtime, self.chance, self.folder = runtime, chance, folder
        self.sessions = [Modelled(runtime.session(history=True)) for _ in range(3)]
        self.n_recalled = 0

    def of(self, state):
        return next(it for it in self.sessions if it.state is state)

    def text(self, n):
        return words(self.chance.randint(1, n), self.chance.choice("abcdef"))

    def read(self, it):
        it.session.read(self.text(40))

    def chat(self, it):
        for _ in it.session.chat(self.text(20), max_tokens=self.chance.choice([1, 12, 40]), sampling=GREEDY):
            pass
        self.n_recalled += it.session.stats.recalled_cells

    def leave(self, it):
        """A reply is left in its midst."""
        pieces = it.session.chat(self.text(8), max_tokens=30, sampling=GREEDY)
        for _ in range(self.chance.randint(0, 3)):
            next(pieces)
        pieces.close()

    def rewind(self, it):
        it.session.rewind(self.chance.randint(0, it.session.n_past))

    def snapshot(self, it):
        it.snapshots.append((it.session.snapshot(), it.model.copy()))

    def restore(self, it):
        if it.snapshots:
            snapshot, model = self.chance.choice(it.snapshots)
            it.session.restore(snapshot)
            it.model = model.copy()

    def save_and_load(self, it):
        if it.session.n_past > 0:
            path = self.folder / f"{it.session.n_past}.edgekv"
            it.session.save(path)
            it.session.close()
            self.sessions[self.sessions.index(it)] = Modelled(self.runtime.load_session(path), it.model)
            path.unlink()

    def fork(self, it):
        """A fork takes the place of another session."""
        other = self.chance.choice([another for another in self.sessions if another is not it])
        other.session.close()
        self.sessions[self.sessions.index(other)] = Modelled(it.session.fork(), it.model.copy())

    def begin_again(self, it):
        it.session.close()
        self.sessions[self.sessions.index(it)] = Modelled(self.runtime.session(history=True))

    def run(self):
        steps = {self.read: 6, self.chat: 6, self.leave: 1, self.rewind: 3, self.snapshot: 2, self.restore: 2}
        steps |= {self.save_and_load: 1, self.fork: 2, self.begin_again: 1}
        for step in self.chance.choices([*steps], [*steps.values()], k=N_STEPS):
            i = self.chance.randrange(len(self.sessions))
            step(self.sessions[i])
            self.sessions[i].check()
        for it in self.sessions:
            it.session.read(words(60))
            self.chat(it)
            it.check()
            it.session.close()


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 80))]


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_hold_the_rows_of_their_own_texts(open_runtime, seed, tmp_path):
    with open_runtime(**ARCHIVED | VARIANTS[seed % len(VARIANTS)]) as rt:
        program = Program(rt, random.Random(seed), tmp_path)
        for block_loop in rt._engine.slots._block_loops:
            block_loop.watch = lambda fed, loop=block_loop: program.of(loop.owner).note(fed)
        program.run()
        assert program.n_recalled > 0
