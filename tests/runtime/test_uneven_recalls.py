"""Recalls in which heads lack different numbers of tokens: what a head that lacks few does not get, others do."""

from __future__ import annotations

import itertools
import tempfile

import numpy as np
import pytest
from recorded import recorded_runtime
from reference_transformer import ReferenceModel
from small import words
from test_archive import HEADS, SPAN, rows_by_position, tokens_of
from test_exactness import WRONG, assert_exact, error

from edgekv.binding.cache import CacheSnapshot
from edgekv.binding.row_archive import RowArchive
from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta
from edgekv.errors import ConfigError
from edgekv.generation.sampler import GREEDY

BLOCK, BUDGET, N_TOKENS, N_RECALLED = 32, 64, 96, 24
BUDGETS = [[96, 32], [90, 38]]  # the first head holds the whole text
LACKING = [0, 64, 6, 58]
KV_TYPES = ["f16", "q8_0", "q4_0"]


@pytest.fixture
def file():
    with tempfile.TemporaryFile(buffering=0) as file:
        yield file


@pytest.fixture(scope="module")
def open_archived(open_runtime):
    def open_archived(policy="keydiff+ada", **options):
        given = {"policy": policy, "focus_policy": "snapkv", "reposition": "never", "budget": BUDGET, "block": BLOCK}
        return open_runtime(**given | options)

    return open_archived


def compact(runtime, **more):
    runtime.block_loop.cache.compact(runtime.options.parsed_policy, BUDGET, n_sink=4, recent=8, **more)


def divided(runtime, file, begin=0, **more):
    """Read a text, divide the cells by BUDGETS and probe; returns the cache, its archive and the rows of the text."""
    cache, tokens = runtime.block_loop.cache, tokens_of(N_TOKENS)
    cache.clear()
    archive = None
    for first in range(0, N_TOKENS, BLOCK):
        if first == begin:
            archive = RowArchive(cache, file.fileno(), begin, 1 << 30)
        cache.feed(tokens[first : first + BLOCK])
    archive.append(cache)
    written = rows_by_position(cache)
    compact(runtime, **{"budgets": BUDGETS} | more)
    cache.probe(tokens_of(12, seed=2))
    return cache, archive, written


def n_cells(cache):
    return [cache.head_cells(*at)[0] for at in cache.heads]


def positions(cache):
    return {at: cache.positions(*at).tolist() for at in cache.heads}


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_heads_that_lack_more_get_what_one_that_holds_the_text_does_not(open_archived, file, kv_type):
    with open_archived(kv_type=kv_type) as rt:
        cache, archive, written = divided(rt, file)
        before, n_free = n_cells(cache), cache.n_free
        assert before == list(itertools.chain(*BUDGETS))
        found = archive.recall(cache, N_RECALLED, **SPAN)
        assert (found.n_cells, cache.n_free) == (N_RECALLED, n_free - N_RECALLED)
        given = np.subtract(n_cells(cache), before)
        assert given.sum() == N_RECALLED * len(HEADS)
        assert (given <= LACKING).all()
        assert given.max() > N_RECALLED
        assert cache.n_cells == -(-sum(n_cells(cache)) // len(HEADS))
        assert [cache.head_cells(*at)[1] for at in HEADS] == before  # what the eviction kept
        assert rows_by_position(cache).items() <= written.items()
        assert positions(cache)[0, 0] == list(range(N_TOKENS))
        archive.close()


# heads of 672 elements are too long for edgekv's own attention, and llama.cpp sums values in f16
@pytest.mark.parametrize(("kv_type", "head_dim"), [*itertools.product(KV_TYPES, [64]), ("f16", 672), ("q8_0", 672)])
def test_logits_equal_a_transformer_that_masks_the_same_triples(tiny_model, file, kv_type, head_dim):
    """Also those after a second recall, which gives some heads fewer tokens once more, and after an eviction."""
    path = tiny_model(n_layer=2, n_ctx_train=1024, n_embd=128, n_head=4, n_head_kv=2, head_dim=head_dim)
    tokens, n_steps = tokens_of(N_TOKENS + 40), 40
    left = iter([BUDGETS])

    def archive_first(cache, policy, budget, keywords):
        archive.append(cache)
        keywords["budgets"] = next(left, None)

    options = {"policy": "random(seed=7)+pyramid", "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    options |= {"focus_policy": "snapkv", "reposition": "never", "probe_tokens": 16}
    with recorded_runtime(path, n_layer=2, n_head_kv=2, before_compaction=archive_first, **options) as run:
        cache, decoded = run.runtime.block_loop.cache, []
        archive = RowArchive(cache, file.fileno(), 0, 1 << 30)
        prefill = run.read(tokens[:N_TOKENS])
        for i, token in enumerate(tokens[N_TOKENS:]):
            if i in (0, 4):
                archive.append(cache)
                cache.probe(tokens_of(12, seed=i))
                assert archive.recall(cache, 8, **SPAN).n_cells == 8
                run.note()
            decoded.append(run.step(token))
        assert len(decoded) == n_steps
        lengths = [list(map(len, itertools.chain(*kept))) for _, kept in run.compactions]
        given = np.diff(lengths[:3], axis=0) - [[0], [4]]  # four tokens were fed before the second
        assert given.sum(axis=1).tolist() == [8 * len(HEADS)] * 2
        assert (given[:, 0] == 0).all()
        assert len(run.compactions) > 3
        archive.close()
    on_device = run.runtime.plan.device_bytes > 0  # ggml sums such short blocks in f16 there
    if head_dim == 64 and not (on_device and kv_type == "f16"):
        assert_exact(path, tokens, run, N_TOKENS, prefill, decoded, kv_type)
        return
    model, visible = ReferenceModel.from_gguf(path), run.visible(len(tokens))
    wrong = visible.copy()
    wrong[1, 1, N_TOKENS:, : N_TOKENS - 1] = visible[1, 1, N_TOKENS:, 1:N_TOKENS]
    found, other = (model.logits(tokens, visible=each, kv_type=kv_type)[N_TOKENS:] for each in (visible, wrong))
    assert max(map(error, decoded, found)) < 0.3 < WRONG < max(map(error, decoded, other))


def test_a_second_recall_takes_the_place_of_the_first(open_archived, file):
    with open_archived() as rt:
        cache, archive, written = divided(rt, file)
        hot, n_free = positions(cache), cache.n_free
        archive.recall(cache, N_RECALLED, **SPAN)
        for n in (3, N_RECALLED, 0):
            cache.probe(tokens_of(8, seed=3))
            archive.recall(cache, n, **SPAN)
            now = positions(cache)
            assert sum(len(now[at]) - len(hot[at]) for at in HEADS) == n * len(HEADS)
            assert all(set(hot[at]) <= set(now[at]) for at in HEADS)
            assert rows_by_position(cache).items() <= written.items()
            assert cache.n_free == n_free - n
        assert now == hot
        archive.close()


def test_what_is_fed_follows_and_is_dropped_and_evicted_as_ever(open_archived, file):
    with open_archived() as rt:
        cache, archive, _ = divided(rt, file)
        archive.recall(cache, 12, **SPAN)
        recalled = rows_by_position(cache)
        cache.feed(tokens_of(9, seed=5))
        now = positions(cache)
        assert all(now[at][-9:] == list(range(N_TOKENS, N_TOKENS + 9)) for at in HEADS)
        assert recalled.items() < rows_by_position(cache).items()
        assert cache.n_droppable == 9
        cache.drop(4)
        archive.append(cache)
        before = rows_by_position(cache)
        compact(rt)
        assert sum(n_cells(cache)) == BUDGET * len(HEADS)
        assert rows_by_position(cache).items() < before.items()
        assert cache.n_free >= BLOCK
        archive.close()


def test_a_snapshot_goes_on_as_the_cells_do(open_archived, file):
    """As many tokens fit, and the logits are the same to the bit."""
    with open_archived() as rt:
        cache, archive, _ = divided(rt, file)
        archive.recall(cache, 12, **SPAN)
        snapshot, found = cache.snapshot(), []
        for _ in range(2):
            state = positions(cache), cache.n_free, cache.n_cells
            cache.feed(tokens_of(5, seed=5), want_logits=True)
            found.append((state, rows_by_position(cache), rt.context.logits_array().tobytes()))
            cache.clear()
            cache.restore(snapshot)
        assert found[0] == found[1]
        archive.close()


def test_a_damaged_snapshot_is_refused(open_archived, file):
    with open_archived() as rt:
        cache, archive, _ = divided(rt, file)
        archive.recall(cache, 12, **SPAN)
        for head, added in itertools.product(range(4), (93, 500, 2**32 - 1)):
            meta = SnapshotMeta.read(CachedSource(cache))
            meta.added[head] = added
            rows = cache.snapshot().data[meta.n_bytes :]
            with pytest.raises(ConfigError, match=r"damaged|find no room"):
                cache.restore(CacheSnapshot(np.concatenate([meta.to_bytes(), rows])))
        archive.close()


@pytest.mark.parametrize(("head_dim", "planned"), [(64, "1MiB"), (672, "1MiB"), (672, "off")])
def test_an_archive_that_began_late_gives_heads_what_each_lacks(tiny_model, file, head_dim, planned):
    """Heads that keep equally many lack different numbers of the archived tokens.

    If the plan had no archive, a graph of llama.cpp's own attention has no nodes for heads that differ, so all get as
    many as the one that lacks the fewest.
    """
    path = tiny_model(n_layer=2, n_ctx_train=1024, n_embd=128, n_head=4, n_head_kv=2, head_dim=head_dim)
    options = {
        "policy": "random(seed=7)",
        "budget": BUDGET,
        "block": BLOCK,
        "focus_policy": "snapkv",
        "archive": planned,
    }
    with recorded_runtime(path, n_layer=2, n_head_kv=2, probe_tokens=16, **options) as run:
        cache, archive, _ = divided(run.runtime, file, begin=64, budgets=None)
        lacking = {at: 32 - sum(p >= 64 for p in held) for at, held in positions(cache).items()}
        assert len(set(lacking.values())) > 1
        before = positions(cache)
        n = archive.recall(cache, N_RECALLED, **SPAN).n_cells
        differ = planned != "off" and run.runtime.plan.device_bytes == 0
        assert n == (-(-sum(lacking.values()) // len(HEADS)) if differ else min(lacking.values()))
        now = positions(cache)
        given = {at: len(now[at]) - len(before[at]) for at in HEADS}
        assert given == (lacking if differ else dict.fromkeys(HEADS, n))
        cache.feed(tokens_of(5, seed=5), want_logits=True)
        assert np.isfinite(run.logits()).all()
        archive.close()


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("reposition", ["never", "always"])
def test_a_session_recalls_though_a_head_holds_its_whole_text(open_archived, tmp_path, reposition, monkeypatch):
    """A saved session has the same cells."""
    options = {"archive": "1MiB", "focus_policy": None, "reposition": reposition, "recent": 8}
    with open_archived(**options) as rt, rt.session() as session:
        cache = rt.block_loop.cache
        monkeypatch.setattr(cache, "compact", with_budgets(cache.compact))
        session.read(words(18))
        "".join(session.chat("What is it?", max_tokens=4, sampling=GREEDY))
        n_past = session.n_past
        held = positions(cache)
        assert any(of == list(range(n_past)) for of in held.values())
        assert session.stats.recalled_cells > 0
        kept = {at: [it for it in of if it >= 0] for at, of in held.items()}  # without rests
        lacking = sum(n_past - len(of) for of in held.values()) / len(held)  # a rest counts as a cell
        assert session.n_recallable == round(lacking)
        session.save(tmp_path / "it.edgekv")
        with rt.load_session(tmp_path / "it.edgekv") as other:
            assert {at: other.kept_positions(*at).tolist() for at in HEADS} == kept
            assert other.n_past == n_past


def with_budgets(compact):
    """Return a compaction that lets the first head keep all that it holds, as far as one head may."""

    def divided_compact(policy, budget, **given):
        return compact(policy, budget, **given | {"budgets": [[2 * budget, 2 * budget // 3], [2 * budget // 3] * 2]})

    return divided_compact
