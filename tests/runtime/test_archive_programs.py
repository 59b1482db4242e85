"""Random programs over a cache and its archive, step by step against a plain model."""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack

import numpy as np
import pytest
from archive_model import ArchiveModel, check_needed, keys_if_fed

from edgekv.binding.row_archive import RowArchive

BLOCK, BUDGET, RECENT, N_SINK = 32, 64, 8, 4
SPAN = {"before": 20, "after": 10, "n_sink": N_SINK}
N_STEPS = 60
POLICIES = ["keydiff", "snapkv", "tova", "sink", "random(seed=5)", "l2norm", "keydiff+ada", "snapkv+ada"]


@pytest.fixture(scope="module")
def open_archived(open_runtime):
    """A function that opens a runtime whose cells carry nothing but rows."""

    def open_archived(**options):
        return open_runtime(**{"focus_policy": "snapkv", "reposition": "never", "recent": RECENT} | options)

    return open_archived


class Program:
    """A cache, its archive and their model, which take the same steps."""

    def __init__(self, runtime, chance, new_file):
        self.cache, self.policy = runtime.block_loop.cache, runtime.options.parsed_policy
        self.shares = "ada" in runtime.options.policy
        self.chance, self.new_file = chance, new_file
        self.cache.clear()
        self.model = ArchiveModel(self.cache.heads)
        self.archive, self.archived = None, None
        self.recalled = {}  # what the last recall filled, unless something was fed or restored since
        self.n_recalled = 0  # how many these are in a head, on average
        self.snapshots = []
        self.begin_archive()

    def begin_archive(self):
        """Begin another archive with the next token. archived: the text as the archive has it"""
        if self.archive is not None:
            self.archive.close()
        limit = self.chance.choice([1 << 30, 1 << 30, 600_000])
        self.archive = RowArchive(self.cache, self.new_file().fileno(), self.cache.n_past, limit)

    def tokens(self, n):
        return [self.chance.randrange(3, 250) for _ in range(n)]

    def feed(self):
        n = self.chance.randint(1, BLOCK)
        if n > self.cache.n_free:
            self.evict()
        self.cache.feed(self.tokens(n))
        self.model.feed(self.cache, n)
        self.recalled, self.n_recalled = {}, 0

    def append(self):
        self.archive.append(self.cache)
        end = self.archive.end
        assert end == self.cache.n_past or end % 128 == 0  # at the limit are whole segments
        self.archived = {at: rows[:end] for at, rows in self.model.stored.items()}

    def evict(self):
        self.append()
        self.cache.compact(self.policy, BUDGET, n_sink=N_SINK, recent=RECENT)
        self.model.evict(self.cache, BUDGET, shared=self.shares)
        self.recalled, self.n_recalled = {}, 0

    def recall(self):
        if self.cache.n_free == 0:
            self.evict()
        self.append()
        tokens = self.tokens(self.chance.randint(1, min(16, self.cache.n_free)))
        n_rows, n_wanted = self.chance.choice([0, 0, 3]), self.chance.randint(0, 40)
        begin, end, scores = self.archive.begin, self.archive.end, None
        own = self.keys_if_fed(tokens) if self.chance.random() < 0.7 else None
        self.cache.probe(tokens)
        if own is not None and end > begin:
            scores = self.model.scores(self.cache, own, begin, end, n_rows=n_rows, **SPAN)
        free = self.cache.n_free + self.n_recalled
        if self.chance.random() < 0.2:  # one that is given up changes nothing
            self.archive.begin_recall(self.cache, n_wanted, n_rows=n_rows, **SPAN)
            self.archive.scan(1)
            return
        n_needed = self.chance.choice([0, 3, 40])
        n_left = self.archive.begin_recall(self.cache, n_wanted, n_rows=n_rows, n_needed=n_needed, **SPAN)
        while n_left:
            n_left = self.archive.scan(4)
        found = self.archive.finish_recall(self.cache)
        for at, positions in self.recalled.items():
            self.model.held[at] -= positions
        lacking = self.model.lacking(begin, end).values()
        n = min(n_wanted, free, -(-sum(lacking) // len(lacking)))
        assert (found.n_cells, self.cache.n_free) == (n, free - n)
        hot = {at: set(held) for at, held in self.model.held.items()}
        self.model.recall(self.cache, begin, end, n, free, scores)
        self.recalled = {at: self.model.held[at] - hot[at] for at in hot}
        needed = np.split(self.archive.needed.positions, np.cumsum(self.archive.needed.counts)[:-1])
        check_needed(dict(zip(hot, needed, strict=True)), hot, self.recalled, scores, begin, min(n_needed, n_wanted))
        self.n_recalled = n

    def keys_if_fed(self, tokens):
        """The keys of a probe's tokens; what was recalled before stays."""
        self.recalled, self.n_recalled = {}, 0
        return keys_if_fed(self.cache, tokens)

    def drop(self):
        n = self.chance.randint(0, self.cache.n_droppable)
        if n > 0:
            self.cache.drop(n)
            self.go_to(self.model.n_past - n)
            self.model.cut(self.cache.n_past)

    def snapshot(self):
        self.snapshots.append((self.cache.snapshot(), self.model.copy()))

    def restore(self):
        if self.snapshots:
            snapshot, model = self.chance.choice(self.snapshots)
            self.cache.restore(snapshot)
            self.model, self.recalled, self.n_recalled = model.copy(), {}, 0
            self.go_to(self.cache.n_past)

    def go_to(self, n_past):
        """Cut the archive to a text's first tokens, or begin it again if it has others, or lacks some."""
        begin, end = self.archive.begin, min(n_past, self.archive.end)
        same = self.archived is not None and all(
            rows[begin:end] == self.model.stored[at][begin:end] for at, rows in self.archived.items()
        )
        if begin <= n_past and same and end == n_past:
            self.archive.cut(n_past)
        else:
            self.begin_archive()

    def clear(self):
        self.cache.clear()
        self.model, self.recalled, self.n_recalled = ArchiveModel(self.cache.heads), {}, 0
        self.begin_archive()

    def run(self):
        steps = [self.feed] * 8 + [self.evict] * 4 + [self.recall] * 6 + [self.drop, self.snapshot, self.restore]
        for step in self.chance.choices([*steps, self.begin_archive, self.clear], [*[4] * len(steps), 1, 1], k=N_STEPS):
            step()
            self.model.check(self.cache)


DAILY = (0, 9, 18, 3, 12, 21, 6, 15)  # each policy once, in every type of cache


@pytest.mark.parametrize("seed", [pytest.param(i, marks=() if i in DAILY else pytest.mark.nightly) for i in range(200)])
def test_programs_over_an_archive_do_what_the_model_does(open_archived, seed):
    kv_type = ("f16", "q8_0", "q4_0")[seed // len(POLICIES) % 3]
    options = {"policy": POLICIES[seed % len(POLICIES)], "kv_type": kv_type, "threads": 1 + seed % 3}
    options["archive"] = ("off", "1MiB")[seed % 2]  # a plan with one has room for heads that differ
    with open_archived(**options) as rt, ExitStack() as files:
        program = Program(rt, random.Random(seed), lambda: files.enter_context(tempfile.TemporaryFile(buffering=0)))
        try:
            program.run()
        finally:
            program.archive.close()
