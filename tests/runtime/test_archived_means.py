"""Means and an archive: a token is in at most one mean, whatever is recalled, and a mean is never archived."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from merged_heads import ROUNDING, held, is_as_merged
from small import words

from edgekv.binding.row_archive import RowArchive
from edgekv.errors import ConfigError
from edgekv.generation.sampler import GREEDY
from edgekv.policies.selection import Protection

BLOCK, BUDGET, N_SINK, RECENT = 32, 64, 4, 16
N_RECALLED = 16
SPAN = {"before": 20, "after": 10}
SPECS = ["keydiff+merge", "keydiff+merge(cells=3)", "keydiff+ada+merge"]


@pytest.fixture(scope="module")
def open_archived(open_runtime):
    def open_archived(policy="keydiff+merge", **options):
        given = {"policy": policy, "archive": "4MiB", "n_sink": N_SINK, "recent": RECENT, "reposition": "never"}
        return open_runtime(**given | options)

    return open_archived


def tokens_of(n, seed=1):
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


class Program:
    """A cache, its archive, and what both have to hold: every step is compared with the reference."""

    def __init__(self, runtime, file):
        self.runtime, self.cache = runtime, runtime.block_loop.cache
        self.cache.clear()
        self.archive = RowArchive(self.cache, file.fileno(), 0, 1 << 30)
        self.fed = {}  # (layer, head, position) -> the rows that its token had when it was fed
        self.given_up = set()  # places of the last recall if nothing was fed since
        self.n_compared = self.n_evictions = 0

    def rows(self):
        """(layer, head, position) -> its key and its value, as they are stored."""
        found = {}
        for at in self.cache.heads:
            keys, values = (self.cache.rows(*at, values=values)[0] for values in (False, True))
            for position, *row in zip(self.cache.positions(*at).tolist(), keys, values, strict=True):
                found[(*at, position)] = tuple(part.tobytes() for part in row)
        return found

    def counts(self):
        found = {}
        for at in self.cache.heads:
            counts = zip(self.cache.positions(*at).tolist(), self.cache.counts(*at).tolist(), strict=True)
            found |= {(*at, position): count for position, count in counts}
        return found

    def feed(self, n, seed):
        first = self.cache.n_past
        self.cache.feed(tokens_of(n, seed))
        self.given_up = set()
        self.fed |= {place: rows for place, rows in self.rows().items() if place[-1] >= first}

    def compact(self):
        self.archive.append(self.cache)
        before, policy = held(self.cache, BUDGET), self.runtime.options.parsed_policy
        self.cache.compact(policy, BUDGET, n_sink=N_SINK, recent=RECENT)
        self.n_evictions += 1
        self.given_up = set()
        for at, found in held(self.cache, BUDGET).items():
            choice = policy.keep_and_merge(before[at], Protection(N_SINK, RECENT), len(found.positions))
            self.n_compared += is_as_merged(before[at], found, *choice, ROUNDING[self.runtime.options.kv_type])
            assert found.counts.sum() == self.cache.n_past

    def recall(self, seed):
        self.archive.append(self.cache)
        kept, counts = ({p: of[p] for p in of.keys() - self.given_up} for of in (self.rows(), self.counts()))
        self.cache.probe(tokens_of(12, seed))
        n = self.archive.recall(self.cache, N_RECALLED, **SPAN).n_cells
        now, recalled = self.rows(), self.rows().keys() - kept.keys()
        assert kept.items() <= now.items()  # means, too
        assert len(recalled) == n * len(self.cache.heads)
        assert {place: now[place] for place in recalled} == {place: self.fed[place] for place in recalled}
        assert self.counts() == counts | dict.fromkeys(recalled, 0)
        self.given_up = recalled

    def close(self):
        token_bytes = self.cache.shape.cell_bytes + 12 * len(self.cache.heads)
        assert self.archive.written_bytes == self.archive.end * token_bytes == self.cache.n_past * token_bytes
        self.archive.close()


@pytest.mark.parametrize("kv_type", ROUNDING)
@pytest.mark.parametrize("spec", SPECS)
def test_a_token_is_in_one_mean_however_often_it_is_recalled(open_archived, spec, kv_type):
    """Recalled rows are those that were fed, though cells became means since. Each row was written once."""
    with open_archived(spec, kv_type=kv_type) as rt, tempfile.TemporaryFile(buffering=0) as file:
        program, rng = Program(rt, file), np.random.default_rng(7)
        for i in range(4):
            program.feed(BLOCK, seed=i)
            program.compact()
        for i in range(8):
            program.recall(seed=100 + i)
            program.feed(int(rng.integers(1, BLOCK // 2)), seed=10 + i)
            if i % 3 == 2:  # recalled cells of two prompts lie in the open rows
                program.compact()
                assert 0 in program.counts().values()  # some of the recalled ones have stayed
                program.recall(seed=200 + i)
                program.recall(seed=300 + i)  # takes the place of the last one
                program.feed(2, seed=20 + i)
            program.compact()
        assert program.n_compared >= 0.75 * (program.n_evictions - 1) * len(rt.block_loop.cache.heads)
        program.close()


def test_recalled_cells_become_no_means(open_archived):
    """Not even if so many of them are there that no other cell has to go."""
    with open_archived("sink+merge") as rt, tempfile.TemporaryFile(buffering=0) as file:
        cache, policy = rt.block_loop.cache, rt.options.parsed_policy
        archive = RowArchive(cache, file.fileno(), 0, 1 << 30)
        cache.feed(tokens_of(BLOCK))
        cache.feed(tokens_of(16, seed=2))
        archive.append(cache)
        cache.compact(policy.inner, 40, n_sink=N_SINK, recent=RECENT)  # no means yet
        cache.probe(tokens_of(12, seed=3))
        n = archive.recall(cache, 8, **SPAN).n_cells
        assert n == 8
        cache.compact(policy, 44, n_sink=N_SINK, recent=RECENT)
        for at in cache.heads:
            assert set(cache.counts(*at).tolist()) <= {0, 1}
            assert len(cache.positions(*at)) == 44
        archive.close()


def test_a_mean_is_no_token_that_could_be_recalled(open_archived):
    with open_archived() as rt, rt.session() as session:
        session.read(words(200))
        "".join(session.chat("What?", max_tokens=2, sampling=GREEDY))
        cache, n = rt.block_loop.cache, session.n_past
        held_positions = [cache.positions(*at) for at in cache.heads]
        kept = [session.kept_positions(*at) for at in cache.heads]
        assert all(set(few) < set(all_held) for few, all_held in zip(kept, held_positions, strict=True))
        assert session.stats.recallable_tokens == session.n_recallable == n - len(held_positions[0])
        assert session.stats.forgotten_tokens == 0
        assert session.stats.recalled_cells == N_RECALLED


def test_a_saved_session_of_an_archive_counts_on_without_one(open_archived, tmp_path):
    with open_archived() as rt, rt.session() as session:
        session.read(words(150))
        "".join(session.chat("What?", max_tokens=2, sampling=GREEDY))
        assert any((rt.block_loop.cache.counts(*at) == 0).any() for at in rt.block_loop.cache.heads)
        session.save(tmp_path / "it.edgekv")
    with open_archived(archive="off", focus=False) as rt, rt.load_session(tmp_path / "it.edgekv") as session:
        session.read(words(60, "more"))
        cache = rt.block_loop.cache
        assert {int(cache.counts(*at).sum()) for at in cache.heads} == {session.n_past}


def test_coarse_types_have_no_means_beside_an_archive_either(open_archived):
    with pytest.raises(ConfigError, match=r"keydiff\+merge keeps means, and with kv_type=q4_0"):
        open_archived(kv_type="q4_0")


POLICIES = [
    "keydiff+merge",
    "snapkv+ada+merge(cells=8)",
    "tova+caote(rounds=2)+pyramid(beta=2)+merge",
    "h2o+critical+merge",
    "ahakv",
    "snapkv(carry=0.5)+critical",
]


def said(session, question):
    return "".join(session.chat(question, max_tokens=2 * BLOCK, sampling=GREEDY))


def replies(runtime):
    """Return what a session says before and after it rested."""
    with runtime.session() as session, runtime.session() as other:
        session.read(words(150))
        found = [said(session, "What?")]
        other.read(words(90, "other"))  # the first one is swapped out if there is one slot
        found.append(said(session, "And then?"))
        assert session.stats.recalled_cells >= N_RECALLED
        assert (session.stats.archive_failure, session.stats.forgotten_tokens) == ("", 0)
        return found


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("policy", POLICIES)
def test_sessions_of_every_policy_recall_and_go_back(open_archived, policy):
    with open_archived(policy) as rt:
        alone = replies(rt)
        with rt.session() as session:
            session.read(words(150))
            snapshot = session.snapshot()
            for _ in range(2):
                assert [said(session, "What?"), said(session, "And then?")] == alone
                session.restore(snapshot)


@pytest.mark.usefixtures("talkative")
def test_a_session_that_carries_most_says_the_same_in_a_worker_and_beside_slots(open_archived):
    options = ({}, {"isolated": True}, {"parallel": 2, "repack": False})
    found = []
    for more in options:
        with open_archived("h2o+critical+merge", **more) as rt:
            found.append(replies(rt))
    assert found[0] == found[1] == found[2]
