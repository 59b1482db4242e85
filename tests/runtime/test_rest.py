"""The rest of a head: one cell for all archived tokens that the head lacks, against a reference in float64."""

from __future__ import annotations

import os
import tempfile

import gguf
import numpy as np
import pytest
from archive_model import keys_if_fed
from cache_arrays import read_rows
from reference_quant import rotate
from small import SETTINGS
from test_archive import BLOCK, BUDGET, HEADS, N_TOKENS, SPAN, archived, tokens_of

import edgekv
from edgekv.binding.row_archive import RowArchive
from edgekv.errors import ArchiveError
from edgekv.policies import Custom, Scorer
from edgekv.policies.recall import rest_of
from edgekv.testing.models.tiny import make_tiny

REST = -1
N_HEAD_KV = 2
N_CELLS = 16
SEGMENT = 128
TOLERANCE = {"f16": 1e-3, "q8_0": 0.01, "q4_0": 0.15}  # roundings, as a share of the length of a row


@pytest.fixture(scope="module")
def open_archived(open_runtime):
    def open_archived(**options):
        given = {"policy": "keydiff", "reposition": "never", "archive": "1MiB"}
        return open_runtime(**given | options)

    return open_archived


@pytest.fixture
def file():
    with tempfile.TemporaryFile(buffering=0) as file:
        yield file


class Text:
    """A text that is archived and evicted, and the rows of all of its tokens in float64, by position."""

    def __init__(self, runtime, file, n=N_TOKENS):
        self.rows = {(*at, values): [] for at in HEADS for values in (False, True)}
        self.cache, self.archive = archived(runtime, file, tokens_of(n), before_eviction=self.note)

    def note(self, cache):
        n = (cache.n_past - 1) % BLOCK + 1
        for *at, values in self.rows:
            self.rows[(*at, values)] += list(read_rows(cache, *at, values=values)[-n:])

    def recall(self, n_cells=N_CELLS, **more):
        return self.archive.recall(self.cache, n_cells, n_sink=4, with_rest=True, **SPAN | more)

    def lacking(self, at, n=N_TOKENS):
        return sorted(set(range(n)) - set(self.cache.positions(*at).tolist()))


def queries_of(cache, layer, head):
    """The last probe's queries of a KV head, un-rotated and scaled, (rows, d) float64."""
    queries, _, scale = cache.queries(layer, probed=True)
    rotation = cache.rows(layer, head)[1].rotation
    queries = queries.astype(np.float64).reshape(N_HEAD_KV, -1, queries.shape[-1])[head]
    return scale * (rotate(queries, rotation) if rotation else queries)


def check_rest(text, at, queries, kv_type="f16", n=N_TOKENS, every=1):
    """Check the rest of a head against the reference, by what it holds now. every: of so many segments it takes one"""
    cache, lacking = text.cache, text.lacking(at, n)
    assert cache.positions(*at)[0] == REST
    taken = [p for p in lacking if p // SEGMENT % every == 0]
    keys, values = (np.array([text.rows[(*at, of_values)][p] for p in taken]) for of_values in (False, True))
    for found, expected in zip(
        (read_rows(cache, *at, values=of_values)[0] for of_values in (False, True)),
        rest_of(keys, values, queries, len(lacking)),
        strict=True,
    ):
        assert np.linalg.norm(found - expected) < TOLERANCE[kv_type] * np.linalg.norm(expected)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("archive", ["off", "1MiB"])
@pytest.mark.parametrize("n_rows", [0, 5])
def test_a_rest_is_what_the_reference_makes_of_the_tokens_that_a_head_lacks(
    open_archived, file, kv_type, archive, n_rows
):
    with open_archived(kv_type=kv_type, archive=archive) as rt:
        text = Text(rt, file)
        hot = [len(text.cache.positions(*at)) for at in HEADS]
        text.cache.probe(tokens_of(12, seed=2))
        queries = {at: queries_of(text.cache, *at) for at in HEADS}
        n_free = text.cache.n_free
        assert text.recall(n_rows=n_rows).n_cells == N_CELLS
        assert text.cache.n_free == n_free - N_CELLS
        assert sum(len(text.cache.positions(*at)) for at in HEADS) == sum(hot) + N_CELLS * len(HEADS)
        for at in HEADS:
            of_probe = queries[at].reshape(-1, 12, queries[at].shape[-1])[:, -n_rows:]
            check_rest(text, at, of_probe.reshape(-1, of_probe.shape[-1]), kv_type)
        text.archive.close()


@pytest.mark.parametrize(
    ("n_tokens", "n_cells", "every"), [(1_920, N_CELLS, 1), (2_100, N_CELLS, 2), (3_200, N_CELLS, 3), (2_100, 1_100, 1)]
)
def test_of_many_segments_a_rest_takes_some_that_lie_evenly(open_archived, file, n_tokens, n_cells, every):
    """But all of them if a head could get all tokens of those."""
    with open_archived(n_ctx_train=4096, archive="off", block=1_200 if n_cells > N_CELLS else BLOCK) as rt:
        text = Text(rt, file, n_tokens)
        text.cache.probe(tokens_of(12, seed=2))
        queries = {at: queries_of(text.cache, *at) for at in HEADS}
        assert text.recall(n_cells).n_cells == n_cells
        for at in HEADS:
            check_rest(text, at, queries[at], n=n_tokens, every=every)
        text.archive.close()


def test_each_query_gives_a_rest_about_what_its_tokens_would_get_if_all_were_the_mean(open_archived, file):
    with open_archived() as rt:
        text = Text(rt, file)
        text.cache.probe(tokens_of(12, seed=2))
        queries = {at: queries_of(text.cache, *at) for at in HEADS}
        text.recall()
        for at in HEADS:
            lacking = text.lacking(at)
            mean = np.mean([text.rows[(*at, False)][p] for p in lacking], axis=0)
            more = queries[at] @ (read_rows(text.cache, *at)[0] - mean)
            assert abs(more.mean() - np.log(len(lacking))) < 0.1 * np.log(len(lacking))
        text.archive.close()


def test_recalled_tokens_are_the_best_ones_as_without_a_rest(open_archived, file):
    with open_archived(archive="off") as rt:
        text = Text(rt, file)
        probe, snapshot = tokens_of(12, seed=2), text.cache.snapshot()
        text.cache.probe(probe)
        text.archive.recall(text.cache, N_CELLS - 1, n_sink=4, **SPAN)
        without = [text.cache.positions(*at).tolist() for at in HEADS]
        text.cache.restore(snapshot)
        text.cache.probe(probe)
        text.recall()
        assert [text.cache.positions(*at).tolist() for at in HEADS] == [[REST, *of] for of in without]
        text.archive.close()


@pytest.mark.parametrize("n_fed", [0, 3])
def test_another_recall_replaces_the_rest(open_archived, file, n_fed):
    """If tokens were fed since, in the same cell."""
    with open_archived() as rt:
        text = Text(rt, file)
        text.cache.probe(tokens_of(12, seed=2))
        text.recall()
        if n_fed:
            text.cache.feed(tokens_of(n_fed, seed=5))
            for *at, values in text.rows:
                text.rows[(*at, values)] += list(read_rows(text.cache, *at, values=values)[-n_fed:])
            text.archive.append(text.cache)
        text.cache.probe(tokens_of(12, seed=3))
        queries = {at: queries_of(text.cache, *at) for at in HEADS}
        n_free = text.cache.n_free
        assert text.recall().n_cells == N_CELLS
        assert text.cache.n_free == n_free - (N_CELLS if n_fed else 0)
        for at in HEADS:
            assert text.cache.positions(*at).tolist().count(REST) == 1
            check_rest(text, at, queries[at], n=N_TOKENS + n_fed)
        text.archive.close()


@pytest.mark.parametrize("policy", ["keydiff", "snapkv+ada", "h2o", "keydiff+critical", "keydiff+caote"])
def test_an_eviction_takes_every_rest(open_archived, file, policy):
    with open_archived(policy=policy) as rt:
        text = Text(rt, file)
        text.cache.probe(tokens_of(12, seed=2))
        text.recall()
        text.cache.feed(tokens_of(4, seed=6))
        text.cache.compact(rt.options.parsed_policy, BUDGET, n_sink=4, recent=8)
        for at in HEADS:
            positions = text.cache.positions(*at).tolist()
            assert min(positions) == 0
            assert positions[-4:] == list(range(N_TOKENS, N_TOKENS + 4))
        assert sum(len(text.cache.positions(*at)) for at in HEADS) == BUDGET * len(HEADS)
        text.archive.close()


def test_a_snapshot_has_the_rests(open_archived, file):
    """Also one whose other rows lie in the archive."""
    with open_archived() as rt:
        text = Text(rt, file)
        text.cache.probe(tokens_of(12, seed=2))
        text.recall()
        text.cache.feed(tokens_of(2, seed=6))
        text.archive.append(text.cache)
        rows = [text.cache.rows(*at, values=values)[0].tobytes() for at in HEADS for values in (False, True)]
        snapshot = text.cache.snapshot()
        text.cache.clear()
        text.cache.restore(snapshot)
        assert [text.cache.rows(*at, values=v)[0].tobytes() for at in HEADS for v in (False, True)] == rows
        text.archive.close()


def test_heads_that_get_all_that_they_lack_have_no_rest(open_archived, file):
    with open_archived(block=128) as rt:
        cache = rt.block_loop.cache
        cache.clear()
        cache.feed(tokens_of(128))
        text = Text.__new__(Text)
        text.cache, text.archive = cache, RowArchive(cache, file.fileno(), 0, 1 << 30)
        text.archive.append(cache)
        cache.compact(rt.options.parsed_policy, BUDGET)
        cache.probe(tokens_of(9, seed=3))
        text.recall(1000)
        assert all(cache.positions(*at).tolist() == list(range(128)) for at in HEADS)
        text.archive.close()


def test_one_cell_alone_is_a_token(open_archived, file):
    with open_archived() as rt:
        text = Text(rt, file)
        text.cache.probe(tokens_of(12, seed=2))
        text.recall(1)
        assert all(text.cache.positions(*at)[0] == 0 for at in HEADS)
        text.archive.close()


@pytest.mark.parametrize("n_fed", [0, 3])
def test_a_file_that_cannot_be_read_changes_no_rest(open_archived, file, n_fed):
    """A head that held one keeps it."""
    with open_archived() as rt:
        text = Text(rt, file)
        text.cache.probe(tokens_of(12, seed=2))
        text.recall()
        if n_fed:
            text.cache.feed(tokens_of(n_fed, seed=5))
            text.archive.append(text.cache)
        before = [read_rows(text.cache, *at, values=v)[0] for at in HEADS for v in (False, True)]
        text.cache.probe(tokens_of(12, seed=3))
        text.archive.begin_recall(text.cache, N_CELLS, with_rest=True, **SPAN)
        assert text.archive.scan(len(HEADS)) == 0
        os.ftruncate(file.fileno(), 0)
        with pytest.raises(ArchiveError):
            text.archive.finish_recall(text.cache)
        now = [read_rows(text.cache, *at, values=v)[0] for at in HEADS for v in (False, True)]
        firsts = [text.cache.positions(*at)[0] for at in HEADS]
        assert firsts == [REST if n_fed else 0] * len(HEADS)
        assert not n_fed or all(np.array_equal(a, b) for a, b in zip(before, now, strict=True))
        text.archive.close()


def test_turned_caches_get_no_rest(open_archived, file):
    with open_archived(reposition="always") as rt:
        text = Text(rt, file)
        text.cache.compact(rt.options.parsed_policy, BUDGET - 8, n_sink=4, recent=8, reposition=True)
        text.cache.probe(tokens_of(12, seed=2))
        assert text.recall().n_cells == N_CELLS
        assert all(text.cache.positions(*at)[0] == 0 for at in HEADS)
        text.archive.close()


def test_tokens_attend_to_the_rest(open_archived, file):
    """Keys of tokens that are fed after a recall depend on the rest."""
    with open_archived() as rt:
        text, probe = Text(rt, file), tokens_of(12, seed=2)
        text.cache.probe(probe)
        snapshot = text.cache.snapshot()
        text.recall()
        with_rest = keys_if_fed(text.cache, probe)
        text.cache.restore(snapshot)
        text.cache.probe(probe)
        text.archive.recall(text.cache, N_CELLS, n_sink=4, **SPAN)
        without = keys_if_fed(text.cache, probe)
        assert np.abs(with_rest[1, 0] - without[1, 0]).max() > 0
        text.archive.close()


def test_a_scorer_of_the_user_sees_tokens_only(open_archived, file):
    seen = []

    def newest(positions, keys):
        seen.append(positions.copy())
        assert keys.shape[:2] == positions.shape
        return positions.astype(np.float32)

    with open_archived(policy=Custom(Scorer.of("newest", newest))) as rt:
        text = Text(rt, file)
        text.cache.probe(tokens_of(12, seed=2))
        text.recall()
        seen.clear()
        text.cache.feed(tokens_of(4, seed=6))
        held = {tuple(text.cache.positions(*at)[1:].tolist()) for at in HEADS}
        text.cache.compact(rt.options.parsed_policy, BUDGET, n_sink=4, recent=8)
        assert {tuple(of.tolist()) for call in seen for of in call} == held
        assert all(text.cache.positions(*at)[0] == 0 for at in HEADS)
        text.archive.close()


def test_a_key_that_is_too_large_for_f16_is_the_mean_alone(tmp_path, file):
    """Queries of almost no length would need a change of almost any."""
    path = make_tiny(tmp_path / "short queries.gguf", n_ctx_train=2048, head_dim=64)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name.endswith("attn_q.weight"):
            tensor.data[:] *= 1e-6
    with edgekv.Runtime(path, **(SETTINGS | {"policy": "keydiff", "reposition": "never", "archive": "1MiB"})) as rt:
        text = Text(rt, file)
        text.cache.probe(tokens_of(12, seed=2))
        text.recall()
        for at in HEADS:
            mean = np.mean([text.rows[(*at, False)][p] for p in text.lacking(at)], axis=0)
            assert np.linalg.norm(read_rows(text.cache, *at)[0] - mean) < TOLERANCE["f16"] * np.linalg.norm(mean)
        text.archive.close()
