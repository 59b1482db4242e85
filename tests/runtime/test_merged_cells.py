"""`merge` in a running cache: means and counts are those of the reference, attention counts them, nothing is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cell_counts import counts_of
from merged_heads import ROUNDING, held, is_as_merged
from small import words

import edgekv
from edgekv.binding.cache import Cache, CacheSnapshot
from edgekv.binding.convert_cells import convert_cells
from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta
from edgekv.binding.structs import CacheParams
from edgekv.errors import ConfigError, UnsupportedModelError
from edgekv.generation.sampler import GREEDY
from edgekv.policies import parse_policy
from edgekv.policies.selection import Protection

BLOCK, BUDGET, N_SINK, RECENT = 32, 64, 4, 16
SPECS = ["keydiff+merge", "l2norm+merge(cells=6)", "sink+merge", "random+merge(cells=9)"]


@pytest.fixture(scope="module")
def open_merging(open_runtime):
    def open_merging(policy="keydiff+merge", **options):
        return open_runtime(**{"policy": policy, "focus": False, "n_sink": N_SINK, "recent": RECENT} | options)

    return open_merging


def tokens_of(n, seed=1):
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


@pytest.mark.parametrize("kv_type", ROUNDING)
@pytest.mark.parametrize("spec", SPECS)
def test_means_and_counts_are_those_of_the_reference(open_merging, spec, kv_type):
    n_compared = 0
    with open_merging(spec, kv_type=kv_type) as rt:
        cache, policy, tokens = rt.block_loop.cache, rt.options.parsed_policy, tokens_of(10 * BLOCK)
        for i in range(0, len(tokens), BLOCK):
            if cache.n_cells + BLOCK > BUDGET + BLOCK:
                before = held(cache, BUDGET)
                cache.compact(policy, BUDGET, n_sink=N_SINK, recent=RECENT)
                for place, found in held(cache, BUDGET).items():
                    choice = policy.keep_and_merge(before[place], Protection(N_SINK, RECENT), BUDGET)
                    n_compared += is_as_merged(before[place], found, *choice, ROUNDING[kv_type])
            cache.feed(tokens[i : i + BLOCK])
    assert n_compared >= 0.75 * 7 * len(before)


@pytest.mark.parametrize("spec", SPECS)
def test_a_smaller_budget_holds_an_eighth_for_means(open_merging, spec):
    """Older means stay by their scores alone, and go into the others if they do not."""
    free = 24
    with open_merging(spec) as rt:
        cache, policy = rt.block_loop.cache, rt.options.parsed_policy
        for i in range(3):
            cache.feed(tokens_of(BLOCK, seed=i))
            cache.compact(policy, BUDGET, n_sink=N_SINK, recent=RECENT)
        before, budget = held(cache, BUDGET), N_SINK + RECENT + free
        assert all((head.counts > 1).sum() > free // 8 for head in before.values())
        cache.compact(policy, budget, n_sink=N_SINK, recent=RECENT)
        for place, found in held(cache, BUDGET).items():
            choice = policy.keep_and_merge(before[place], Protection(N_SINK, RECENT), budget)
            is_as_merged(before[place], found, *choice, ROUNDING["f16"])
            assert found.counts.sum() == cache.n_past
            means = found.positions[found.counts > 1]
            old = before[place].positions[before[place].counts > 1]
            assert set(old[-(free // 8) :]) <= set(means)
            assert spec != "sink+merge" or len(means) == free // 8  # by whose scores the oldest go


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
def test_means_are_no_kept_tokens(open_merging, isolated):
    """Neither in what a session says of its heads, nor of its text."""
    with open_merging(isolated=isolated) as rt, rt.session() as session:
        session.read(words(70))
        heads = [(layer, head) for layer, budgets in enumerate(session.budgets()) for head in range(len(budgets))]
        kept = [session.kept_positions(*head) for head in heads]
        coverage = session._conversation.coverage()
        if not isolated:
            cache = rt.block_loop.cache
            for positions, head in zip(kept, heads, strict=True):
                counts = cache.counts(*head)
                np.testing.assert_array_equal(counts, counts_of(cache)[head])
                np.testing.assert_array_equal(positions, cache.positions(*head)[counts == 1])
        assert sum(map(len, kept)) == coverage.counts.sum() < sum(map(sum, session.budgets()))


@pytest.mark.parametrize("named", ["policy", "focus_policy"])
def test_means_are_refused_in_q4_0(open_merging, named):
    """A mean is stored again with every eviction. So rough steps round away what it takes in."""
    specs = {"policy": "keydiff", "focus": True} | {named: "snapkv+merge"}
    with pytest.raises(ConfigError, match=r"snapkv\+merge keeps means, and with kv_type=q4_0 .*; use kv_type=q8_0"):
        open_merging(kv_type="q4_0", **specs)


def snapshot_of(meta, rows):
    """A snapshot of changed numbers and rows (n_bytes,) uint8."""
    meta.header.rows_begin = meta.n_bytes
    meta.header.n_bytes = meta.n_bytes + len(rows)
    return CacheSnapshot(np.concatenate([meta.to_bytes(), rows]))


@pytest.mark.parametrize("n_tokens", [1, 20], ids=["a token", "a block"])
def test_a_mean_of_two_equal_cells_counts_as_the_two(open_merging, n_tokens):
    """Cells a and b of every head get equal rows; then b goes, and a counts twice."""
    a, b = 10, 20
    with open_merging("sink+merge") as rt:
        cache = rt.block_loop.cache
        for i in range(3):
            cache.feed(tokens_of(BLOCK, seed=i))
        cache.compact(parse_policy("sink"), BUDGET, recent=RECENT)
        n_row = cache.row_format(0, values=False).dim * 2
        assert cache.shape.cell_bytes == 2 * n_row * cache.shape.n_head_total

        def logits(meta, rows):
            cache.restore(snapshot_of(meta, rows.reshape(-1)))
            cache.feed(tokens_of(n_tokens, seed=9), want_logits=True)
            return rt.context.logits_array().copy()

        def read():
            source = CachedSource(cache)
            meta, data = SnapshotMeta.read(source), np.empty(source.n_bytes, np.uint8)
            source.read_into(0, data)
            return meta, data[int(meta.header.rows_begin) :].reshape(cache.shape.n_head_total, 2, BUDGET, n_row)

        meta, rows = read()
        other = logits(meta, rows)
        cache.restore(snapshot_of(meta, rows.reshape(-1)))
        meta, rows = read()
        rows[:, :, b] = rows[:, :, a]
        twice = logits(meta, rows)

        def without_b(array):
            return np.delete(array.reshape(-1, BUDGET), b, axis=1).reshape(-1)

        order = without_order_of(meta.carried["order"].reshape(-1, BUDGET), b)
        meta.carried = {name: without_b(array) for name, array in meta.carried.items()} | {"order": order}
        meta.kept = meta.kept - np.uint32(1)
        once = logits(meta, np.delete(rows, b, axis=2))
        counts = meta.carried["log_count"].view(np.float32).reshape(-1, BUDGET - 1).copy()
        counts[:, a] = np.log(2)
        meta.carried["log_count"] = counts.view(np.uint32).reshape(-1)
        counted = logits(meta, np.delete(rows, b, axis=2))
    scale = twice.std()
    assert np.abs(counted - twice).max() < 1e-4 * scale < 1e-2 * scale < np.abs(once - twice).max()
    assert np.abs(other - twice).max() > 1e-2 * scale


def without_order_of(order, cell):
    """Orders (n_heads, n) of cells when one cell is gone from every head."""
    kept = order[order != cell].reshape(len(order), -1)
    return (kept - (kept > cell)).astype(np.uint32).reshape(-1)


EVERY_KIND = [
    "keydiff+merge",
    "snapkv+ada+merge(cells=8)",
    "h2o+critical+merge",
    "tova+caote(rounds=2)+pyramid(beta=2)+merge",
    "expected+merge(cells=3)",
    "counting+merge",
]


@pytest.fixture
def counting():
    """A custom scorer by that name."""
    edgekv.policies.register("counting", lambda positions: -(positions % 7).astype(np.float32))
    yield
    edgekv.policies.unregister("counting")


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("spec", EVERY_KIND)
def test_no_token_is_lost(open_merging, spec):
    """Counts add up to the tokens that were read and generated, for every head."""
    with open_merging(spec) as rt, rt.session() as session:
        session.read(words(70))
        list(session.ask("And then?", max_tokens=90, ignore_eos=True, allow_loops=True))
        assert rt.block_loop.work.evictions > 8
        counts = counts_of(rt.block_loop.cache)
        assert {float(of_head.sum()) for of_head in counts.values()} == {float(session.n_past)}
        assert max(len(of_head) for of_head in counts.values()) < session.n_past / 2


def test_a_question_keeps_the_means_and_drops_what_it_does_not_need(open_merging):
    with open_merging(focus=True) as rt, rt.session() as session:
        session.read(words(60))
        before = sum(of_head.sum() for of_head in counts_of(rt.block_loop.cache).values())
        list(session.ask("Who?", files=[], max_tokens=1))
        list(session.ask(words(60), max_tokens=4))
        after = counts_of(rt.block_loop.cache)
        assert sum(of_head.sum() for of_head in after.values()) >= before
        assert all((of_head > 1).any() for of_head in after.values())


def reply(session, question="What then?"):
    return list(session.ask(question, max_tokens=24, sampling=GREEDY, ignore_eos=True, allow_loops=True))


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_sessions_go_on_from_snapshots_and_files(open_merging, tmp_path, isolated, kv_type):
    with open_merging(isolated=isolated, kv_type=kv_type) as rt, rt.session() as session:
        session.read(words(70))
        snapshot = session.snapshot()
        session.save(tmp_path / "saved")
        expected = reply(session)
        session.restore(snapshot)
        assert reply(session) == expected
        with rt.load_session(tmp_path / "saved") as loaded:
            assert reply(loaded) == expected
        session.restore(snapshot)
        with rt.session() as other:  # the first one is swapped out
            reply(other)
        assert reply(session) == expected


def test_means_are_refused_without_merge_and_single_cells_are_taken(open_merging):
    with open_merging() as merging, open_merging("keydiff") as plain:
        for rt in (merging, plain):
            rt.block_loop.read(tokens_of(6 * BLOCK), lambda n: True)
        with pytest.raises(ConfigError, match=r"means of evicted ones, which only a policy with \+merge counts"):
            convert_cells(CachedSource(merging.block_loop.cache), plain.block_loop.cache)
        assert plain.block_loop.cache.n_past == 6 * BLOCK
        convert_cells(CachedSource(plain.block_loop.cache), merging.block_loop.cache)
        assert all((of_head == 1).all() for of_head in counts_of(merging.block_loop.cache).values())
        merging.block_loop.begin()
        merging.block_loop.read(tokens_of(BLOCK), lambda n: True)
        convert_cells(CachedSource(merging.block_loop.cache), plain.block_loop.cache)  # nothing was merged yet
        assert plain.block_loop.cache.n_past == BLOCK


def test_a_snapshot_of_impossible_counts_is_refused(open_merging):
    with open_merging() as rt, rt.session() as session:
        session.read(words(70))
        cache = rt.block_loop.cache
        meta, data = SnapshotMeta.read(CachedSource(cache)), cache.snapshot().data.copy()
        at = int(meta.header.rows_begin) - 4
        for count in (-1.0, 30.0, np.inf, np.nan):
            data[at : at + 4] = np.frombuffer(np.float32(count).tobytes(), np.uint8)
            with pytest.raises(ConfigError, match="means of impossibly many"):
                cache.restore(CacheSnapshot(data))


@pytest.mark.parametrize("n_words", [40, 120], ids=["as it was", "turned"])
def test_turned_keys_end_it(open_runtime, n_words):
    """From the first eviction that turns keys on everything is as without merge."""
    texts = {}
    for policy in ("keydiff", "keydiff+merge"):
        with open_runtime(policy=policy, focus=False, n_ctx_train=512) as rt, rt.session() as session:
            session.read(words(n_words))
            is_turned = rt.block_loop.work.repositions > 0
            if policy.endswith("merge"):
                assert any((of_head > 1).any() for of_head in counts_of(rt.block_loop.cache).values()) != is_turned
            texts[policy] = reply(session)
            is_turned = rt.block_loop.work.repositions > 0
    assert (texts["keydiff"] == texts["keydiff+merge"]) == (n_words == 120)


def test_parallel_sessions_reply_as_alone(open_merging):
    """Products of these weights are to the bit what they are alone, whichever sessions happen to share a step."""
    questions, alike = ["What then?", "Where?", "Who was it?"], {"quantization": "Q8_0", "repack": False}
    with open_merging(**alike) as rt:
        alone = []
        for question in questions:
            with rt.session() as session:
                session.read(words(50, question[:2]))
                alone.append(reply(session, question))
    with open_merging(parallel=3, **alike) as rt:
        sessions = [rt.session() for _ in questions]
        for session, question in zip(sessions, questions, strict=True):
            session.read(words(50, question[:2]))
        with ThreadPoolExecutor(len(questions)) as pool:
            assert list(pool.map(reply, sessions, questions)) == alone
        for session in sessions:
            session.close()


def test_drafts_say_what_single_tokens_say(open_merging):
    said = []
    for prompt_lookup in ("off", "on"):
        with open_merging(prompt_lookup=prompt_lookup) as rt, rt.session() as session:
            session.read(words(90))
            said.append(reply(session))
    assert said[0] == said[1]


@pytest.mark.parametrize("staging", ["copies", "graphs"])
def test_cells_that_others_read_are_refused(open_merging, staging, monkeypatch):
    """Copies and graphs read rows as a device does, and know no counts."""
    with open_merging() as rt:
        rt.block_loop.cache.close()
        monkeypatch.setenv("EDGEKV_STAGING", staging)
        with pytest.raises(UnsupportedModelError, match="merge needs cells in the processor's memory"):
            Cache(rt.context, CacheParams(n_merged=4))
