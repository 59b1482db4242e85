"""The archive of a cache: what comes back is to the bit what left, and it is what the reference would choose."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest
from archive_model import ArchiveModel, keys_if_fed
from cache_arrays import output_projections, read_rows
from test_exactness import IN_F16

from edgekv.binding.cache import Cache
from edgekv.binding.row_archive import RowArchive
from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta
from edgekv.errors import ArchiveError, ConfigError, NativeError
from edgekv.policies import parse_policy
from edgekv.policies.critical import wo_norms

BLOCK, BUDGET = 32, 64
N_TOKENS = 300
SPAN = {"before": 20, "after": 10}
HEADS = list(np.ndindex(2, 2))
SEGMENT = 128  # EDGEKV_SEGMENT_TOKENS
MARKS = 8 + 4  # bytes of a token in a head: checksum and RoPE position of its key, checksum of its value


@pytest.fixture(scope="module")
def open_archived(open_runtime):
    """A function that opens a runtime whose cells carry nothing but rows."""

    def open_archived(**options):
        return open_runtime(**{"policy": "keydiff", "focus_policy": "snapkv", "reposition": "never"} | options)

    return open_archived


def tokens_of(n, seed=1):
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


@pytest.fixture
def file():
    with tempfile.TemporaryFile(buffering=0) as file:
        yield file


def archived(runtime, file, tokens, *, limit=1 << 30, before_eviction=lambda cache: None):
    """Feed tokens block by block, archive each and evict; returns cache and archive."""
    cache = runtime.block_loop.cache
    cache.clear()
    archive = RowArchive(cache, file.fileno(), 0, limit)
    for first in range(0, len(tokens), BLOCK):
        cache.feed(tokens[first : first + BLOCK])
        archive.append(cache)
        before_eviction(cache)
        cache.compact(runtime.options.parsed_policy, BUDGET, n_sink=4, recent=8)
    return cache, archive


def rows_by_position(cache):
    """(layer, head, position) -> its key and its value, as they are stored."""
    found = {}
    for at in HEADS:
        keys, values = (cache.rows(*at, values=values)[0] for values in (False, True))
        for position, *row in zip(cache.positions(*at).tolist(), keys, values, strict=True):
            found[(*at, position)] = tuple(part.tobytes() for part in row)
    return found


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("policy", ["keydiff", "snapkv+ada"])
def test_recalled_rows_are_to_the_bit_those_that_were_evicted(open_archived, file, kv_type, policy):
    with open_archived(kv_type=kv_type, policy=policy) as rt:
        written = {}
        cache, archive = archived(
            rt, file, tokens_of(N_TOKENS), before_eviction=lambda it: written.update(rows_by_position(it))
        )
        hot = [set(cache.positions(*at).tolist()) for at in HEADS]
        cache.probe(tokens_of(12, seed=2))
        n_free = cache.n_free
        found = archive.recall(cache, 16, **SPAN)
        assert (found.n_cells, found.n_scanned, cache.n_free) == (16, N_TOKENS * len(HEADS), n_free - 16)
        assert rows_by_position(cache).items() <= written.items()
        now = [cache.positions(*at).tolist() for at in HEADS]
        assert all(of == sorted(set(of)) and before <= set(of) for of, before in zip(now, hot, strict=True))
        given = [len(of) - len(before) for of, before in zip(now, hot, strict=True)]
        assert sum(given) == 16 * len(HEADS)
        assert (len(set(given)) > 1) == ("ada" in policy)
        archive.close()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("n_rows", [0, 5])
@pytest.mark.parametrize("archive", ["off", "1MiB"])
def test_what_is_recalled_is_what_the_reference_finds_best(open_archived, file, kv_type, n_rows, archive):
    """Each head gets as many, or if a plan with an archive has room for it, heads get what is best over all of them."""
    with open_archived(kv_type=kv_type, archive=archive) as rt:
        model = ArchiveModel(HEADS)
        cache, rows = archived(rt, file, tokens_of(N_TOKENS), before_eviction=lambda it: model.feed(it, fresh(it)))
        model.held = {at: set(cache.positions(*at).tolist()) for at in HEADS}
        probe, n_free = tokens_of(12, seed=2), cache.n_free
        own = keys_if_fed(cache, probe)
        cache.probe(probe)
        scores = model.scores(cache, own, 0, N_TOKENS, n_rows=n_rows, n_sink=4, **SPAN)
        hot = {at: len(held) for at, held in model.held.items()}
        rows.recall(cache, 24, n_rows=n_rows, n_sink=4, **SPAN)
        model.recall(cache, 0, N_TOKENS, 24, n_free, scores)
        model.check(cache)
        given = [len(model.held[at]) - hot[at] for at in HEADS]
        assert (len(set(given)) == 1) == (archive == "off")
        rows.close()


def test_a_probe_whose_keys_are_gone_scores_without_them(open_archived, file):
    """Tokens that were fed since lie where they did. Their share of the attention is then nobody's."""
    with open_archived(archive="1MiB") as rt:
        model = ArchiveModel(HEADS)
        cache, rows = archived(rt, file, tokens_of(N_TOKENS), before_eviction=lambda it: model.feed(it, fresh(it)))
        model.held = {at: set(cache.positions(*at).tolist()) for at in HEADS}
        cache.probe(tokens_of(12, seed=2))
        cache.feed(tokens_of(3, seed=4))
        model.feed(cache, 3)
        rows.append(cache)
        none = {at: np.empty((0, cache.shape.head_dim_k)) for at in HEADS}
        scores = model.scores(cache, none, 0, N_TOKENS + 3, **SPAN)
        n_free = cache.n_free
        rows.recall(cache, 16, **SPAN)
        model.recall(cache, 0, N_TOKENS + 3, 16, n_free, scores)
        rows.close()


def fresh(cache):
    """Tokens of the newest block."""
    return (cache.n_past - 1) % BLOCK + 1


def test_a_recall_of_everything_gives_the_logits_of_a_full_cache(open_archived, file):
    """One block, so that no row was computed with fewer cells."""
    with open_archived(block=128) as rt:
        tokens, question = tokens_of(128), tokens_of(9, seed=3)
        cache = rt.block_loop.cache
        cache.feed(tokens)
        cache.feed(question, want_logits=True)
        full = rt.context.logits_array().copy()
        cache.clear()
        cache.feed(tokens)
        archive = RowArchive(cache, file.fileno(), 0, 1 << 30)
        archive.append(cache)
        cache.compact(rt.options.parsed_policy, BUDGET)
        snapshot = cache.snapshot()
        cache.feed(question, want_logits=True)
        assert np.abs(rt.context.logits_array() - full).max() > 0.1 * full.std()
        cache.restore(snapshot)
        cache.probe(question)
        assert archive.recall(cache, 1000, **SPAN).n_cells == 64
        cache.feed(question, want_logits=True)
        bound = 2e-3 if rt.plan.device_bytes == 0 else IN_F16  # ggml sums the values of so few tokens there in f16
        np.testing.assert_allclose(rt.context.logits_array(), full, atol=bound * full.std())
        archive.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_recall_in_steps_brings_what_one_brings(open_archived, file, threads):
    with open_archived(threads=threads) as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        probe, snapshot = tokens_of(12, seed=2), cache.snapshot()
        cache.probe(probe)
        archive.recall(cache, 16, **SPAN)
        at_once = rows_by_position(cache)
        cache.restore(snapshot)
        hot = rows_by_position(cache)
        cache.probe(probe)
        assert archive.begin_recall(cache, 16, **SPAN) == len(HEADS)
        assert archive.scan(3) == 1
        with pytest.raises(NativeError, match="after all heads were scanned"):
            archive.finish_recall(cache)
        assert rows_by_position(cache) == hot
        assert archive.begin_recall(cache, 16, **SPAN) == len(HEADS)  # the other one is given up
        assert (archive.scan(3), archive.scan(3)) == (1, 0)
        found = archive.finish_recall(cache)
        assert (found.n_cells, rows_by_position(cache)) == (16, at_once)
        archive.close()


def test_a_recall_ends_with_the_cells_that_it_began_with(open_archived, file):
    with open_archived() as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        cache.probe(tokens_of(12, seed=2))
        archive.begin_recall(cache, 16, **SPAN)
        assert archive.scan(len(HEADS)) == 0
        cache.feed(tokens_of(1))
        rows = rows_by_position(cache)
        with pytest.raises(NativeError, match="with the cells that it began with"):
            archive.finish_recall(cache)
        assert rows_by_position(cache) == rows
        archive.close()


def test_a_second_recall_takes_the_place_of_the_first(open_archived, file):
    with open_archived() as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        hot = {at: cache.positions(*at).tolist() for at in HEADS}
        first, second = tokens_of(12, seed=2), tokens_of(12, seed=3)
        cache.probe(second)
        archive.recall(cache, 8, **SPAN)
        alone = rows_by_position(cache)
        cache.compact(rt.options.parsed_policy, BUDGET, n_sink=4, recent=8)
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        cache.probe(first)
        archive.recall(cache, 8, **SPAN)
        cache.probe(second)  # its queries see what the first recall brought, so it may find something else
        archive.recall(cache, 8, **SPAN)
        assert {at: len(cache.positions(*at)) for at in HEADS} == {at: len(held) + 8 for at, held in hot.items()}
        assert all(set(hot[at]) < set(cache.positions(*at).tolist()) for at in HEADS)
        assert len(rows_by_position(cache)) == len(alone)
        archive.close()


def test_what_was_fed_after_a_recall_stays_when_another_follows(open_archived, file):
    with open_archived() as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        cache.probe(tokens_of(12, seed=2))
        archive.recall(cache, 8, **SPAN)
        kept = rows_by_position(cache)
        cache.feed(tokens_of(4, seed=4))
        archive.append(cache)
        cache.probe(tokens_of(12, seed=3))
        archive.recall(cache, 8, **SPAN)
        now = rows_by_position(cache)
        assert kept.items() < now.items()
        assert len(now) == len(kept) + (4 + 8) * len(HEADS)
        assert archive.end == cache.n_past == N_TOKENS + 4
        archive.close()


def test_tokens_before_a_recall_are_not_dropped(open_archived, file):
    with open_archived() as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        cache.feed(tokens_of(3, seed=4))
        archive.append(cache)
        cache.probe(tokens_of(12, seed=2))
        archive.recall(cache, 8, **SPAN)
        rows = rows_by_position(cache)
        assert cache.n_droppable == 0
        cache.feed(tokens_of(5, seed=5))
        assert cache.n_droppable == 5
        cache.drop(5)
        assert rows_by_position(cache) == rows
        assert cache.n_past == N_TOKENS + 3
        archive.close()


def test_a_snapshot_holds_recalled_cells(open_archived, file):
    with open_archived() as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        cache.probe(tokens_of(12, seed=2))
        archive.recall(cache, 8, **SPAN)
        snapshot, rows = cache.snapshot(), rows_by_position(cache)
        cache.feed(tokens_of(5, seed=5), want_logits=True)
        logits = rt.context.logits_array().copy()
        cache.restore(snapshot)
        assert rows_by_position(cache) == rows
        cache.feed(tokens_of(5, seed=5), want_logits=True)
        assert np.array_equal(rt.context.logits_array(), logits)
        archive.close()


def test_at_the_limit_the_first_tokens_stay_archived(open_archived, file):
    with open_archived() as rt:
        n_bytes = 2 * (SEGMENT * (rt.plan.cell_bytes + MARKS * len(HEADS)))
        cache, archive = archived(rt, file, tokens_of(N_TOKENS), limit=n_bytes)
        assert (archive.begin, archive.end) == (0, 2 * SEGMENT)
        assert os.fstat(file.fileno()).st_size <= n_bytes
        cache.probe(tokens_of(12, seed=2))
        hot = {at: set(cache.positions(*at).tolist()) for at in HEADS}
        assert archive.recall(cache, 16, **SPAN).n_cells == 16
        assert all(max(set(cache.positions(*at).tolist()) - hot[at]) < 2 * SEGMENT for at in HEADS)
        archive.close()


@pytest.mark.parametrize("begin", [0, 4 * BLOCK, 9 * BLOCK])
def test_the_limit_is_one_of_the_file_wherever_the_archive_begins(open_archived, file, begin):
    with open_archived() as rt:
        n_bytes = 2 * SEGMENT * rt.plan.cell_bytes + 2 * SEGMENT * MARKS * len(HEADS)
        written, cache = {}, rt.block_loop.cache
        cache.clear()
        tokens, archive = tokens_of(begin + 3 * SEGMENT), None
        for first in range(0, len(tokens), BLOCK):
            if first == begin:
                archive = RowArchive(cache, file.fileno(), begin, n_bytes)
            cache.feed(tokens[first : first + BLOCK])
            if archive is not None:
                archive.append(cache)
                written.update(rows_by_position(cache))
            cache.compact(rt.options.parsed_policy, BUDGET, n_sink=4, recent=8)
        assert (archive.begin, archive.end) == (begin, (begin // SEGMENT + 2) * SEGMENT)
        assert os.fstat(file.fileno()).st_size <= n_bytes
        cache.probe(tokens_of(12, seed=2))
        assert archive.recall(cache, 16, **SPAN).n_cells == 16
        assert rows_by_position(cache).items() <= written.items()
        archive.close()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_a_token_takes_the_bytes_that_the_plan_says(open_archived, file, kv_type):
    with open_archived(kv_type=kv_type, archive="1MiB", focus_policy=None) as rt:
        _, archive = archived(rt, file, tokens_of(N_TOKENS))
        assert archive.written_bytes == N_TOKENS * rt.plan.archive_token_bytes
        archive.close()


def test_a_cut_archive_takes_other_tokens_at_the_same_positions(open_archived, file):
    with open_archived() as rt:
        written, cache = {}, rt.block_loop.cache
        _, archive = archived(
            rt, file, tokens_of(N_TOKENS), before_eviction=lambda it: written.update(rows_by_position(it))
        )
        archive.cut(200)
        assert archive.end == 200
        cache.clear()
        archive.cut(0)
        other = tokens_of(N_TOKENS, seed=9)
        for first in range(0, N_TOKENS, BLOCK):
            cache.feed(other[first : first + BLOCK])
            archive.append(cache)
            written.update(rows_by_position(cache))
            cache.compact(rt.options.parsed_policy, BUDGET, n_sink=4, recent=8)
        cache.probe(tokens_of(12, seed=2))
        archive.recall(cache, 16, **SPAN)
        assert rows_by_position(cache).items() <= written.items()
        archive.close()


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_file_leaves_the_cells_as_they_were(open_archived, file, damage):
    with open_archived() as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        cache.probe(tokens_of(12, seed=2))
        rows = rows_by_position(cache)
        if damage == "cut":
            os.truncate(file.fileno(), 1000)
        else:
            os.pwrite(file.fileno(), b"\1\2\3", SEGMENT * 8 + 5)  # behind the marks of the first keys
        with pytest.raises(ArchiveError, match=r"shorter than what was written|position 0 has another checksum"):
            archive.recall(cache, 16, **SPAN)
        assert rows_by_position(cache) == rows
        cache.feed(tokens_of(5, seed=5))
        archive.close()


def test_a_damaged_value_gives_up_what_an_earlier_recall_filled(open_archived, file):
    """The scan reads keys alone, so the cells of the earlier recall are given up by then."""
    with open_archived() as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        hot = rows_by_position(cache)
        cache.probe(tokens_of(12, seed=2))
        archive.recall(cache, 16, **SPAN)
        keys, values = (cache.row_format(0, values=values).stride_bytes for values in (False, True))
        place = SEGMENT * (8 + keys) + SEGMENT * 4  # the first head's values begin here in a segment
        segment = SEGMENT * (rt.plan.cell_bytes + MARKS * len(HEADS))
        for i in range(3):
            os.pwrite(file.fileno(), bytes(SEGMENT * values), i * segment + place)
        cache.probe(tokens_of(12, seed=2))
        with pytest.raises(ArchiveError, match="another checksum"):
            archive.recall(cache, 16, **SPAN)
        assert rows_by_position(cache) == hot
        archive.close()


def test_a_file_that_takes_no_more_keeps_what_it_has(open_archived, file, tmp_path):
    path = tmp_path / "archive"
    path.write_bytes(b"")
    with open_archived() as rt, path.open("rb") as read_only:
        cache = rt.block_loop.cache
        cache.feed(tokens_of(BLOCK))
        archive = RowArchive(cache, read_only.fileno(), 0, 1 << 30)
        with pytest.raises(ArchiveError, match="cannot be written"):
            archive.append(cache)
        assert archive.end == 0
        archive.append(cache)  # nothing is tried again: a gap could not be told from what was written
        archive.close()


def test_what_cannot_be_recalled_is_refused(open_archived, file):
    with open_archived() as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        with pytest.raises(NativeError, match="no probe whose queries could recall"):
            archive.recall(cache, 16, **SPAN)
        cache.feed(tokens_of(3))
        cache.probe(tokens_of(12, seed=2))
        with pytest.raises(NativeError, match="the archive ends at position 300, but 303 tokens were fed"):
            archive.recall(cache, 16, **SPAN)
        cache.compact(parse_policy("keydiff"), BUDGET, n_sink=4, recent=0)
        with pytest.raises(NativeError, match="append before cells are evicted"):
            archive.append(cache)
        with pytest.raises(ConfigError, match="begins at a position that was fed"):
            RowArchive(cache, file.fileno(), 304, 1 << 30)
        archive.close()


def carried(cache, name):
    """(layer, head, position) -> what a cell carries by that name."""
    meta = SnapshotMeta.read(CachedSource(cache))
    values = np.split(meta.carried[name].view(np.float32), np.cumsum(meta.cells)[:-1])
    places = np.split(meta.carried["position"].view(np.int32), np.cumsum(meta.cells)[:-1])
    by_head = zip(cache.heads, places, values, strict=True)
    return {(*at, int(p)): float(v) for at, of_head, its in by_head for p, v in zip(of_head, its, strict=True)}


@pytest.mark.parametrize("policy", ["h2o", "ahakv"])
def test_a_recalled_cell_begins_with_a_score_of_zero(open_archived, file, policy):
    """As one that is fed. The others keep theirs, and at the next eviction all compete."""
    with open_archived(policy=policy, focus_policy=None) as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        before = carried(cache, "accumulated")
        assert max(before.values()) > 0
        cache.probe(tokens_of(12, seed=2))
        for _ in range(2):  # the second one takes the place of the first
            archive.recall(cache, 16, **SPAN)
            now = carried(cache, "accumulated")
            recalled = now.keys() - before.keys()
            assert len(recalled) == 16 * len(HEADS)
            assert now == before | dict.fromkeys(recalled, 0.0)
        cache.feed(tokens_of(9, seed=5))
        archive.append(cache)
        cache.compact(rt.options.parsed_policy, BUDGET, n_sink=4, recent=8)
        assert all(len(cache.positions(*at)) == BUDGET for at in HEADS)
        archive.close()


def test_recalled_cells_get_their_norms_at_the_next_eviction(open_archived, file):
    with open_archived(policy="keydiff+critical") as rt:
        cache, archive = archived(rt, file, tokens_of(N_TOKENS))
        held = {at: set(cache.positions(*at).tolist()) for at in HEADS}
        cache.probe(tokens_of(12, seed=2))
        archive.recall(cache, 16, **SPAN)
        cache.compact(rt.options.parsed_policy, BUDGET, n_sink=4, recent=8)
        assert any(set(cache.positions(*at).tolist()) - held[at] for at in HEADS)  # some of them stay
        norms = carried(cache, "wo_norm")
        n_head = cache.queries(0, probed=True)[0].shape[0]
        projections = output_projections(rt.plan.model, n_head, 2, cache.row_format(0).dim)
        for layer, g in HEADS:
            values = read_rows(cache, layer, g, values=True)
            found = [norms[layer, g, p] for p in cache.positions(layer, g).tolist()]
            np.testing.assert_allclose(found, wo_norms(values, projections[layer][g]), rtol=1e-4)
        archive.close()


def test_the_plan_counts_what_archive_and_recall_hold(open_archived):
    with open_archived() as plain, open_archived(archive="1MiB", focus_policy=None) as archiving:
        held = archiving.plan.parts.bookkeeping - plain.plan.parts.bookkeeping
        copies = 0 if archiving.plan.device_bytes == 0 else 5 << 20  # rows on their way
        assert 30_000 < held < (2 << 20) + copies
        assert isinstance(archiving.block_loop.cache, Cache)
