"""Cells divided over heads by a table: what is kept, and everything that such a cache meets."""

from __future__ import annotations

import contextlib
import shutil

import numpy as np
import pytest
import test_row_graphs
from at_once import alone, together
from recorded import recorded_runtime
from reference_choice import Reference
from small import words
from test_kept_sets import BUDGET, SHAPE, read_and_check, rope_of, w_o_of

import edgekv
from edgekv import policies
from edgekv.models.head_shares import HeadShares, path_beside
from edgekv.options import DIVIDED_POLICY, MERGED_POLICY, UNTURNED_POLICY
from edgekv.planning.choice import MOST_DIVIDED
from edgekv.policies import parse_policy

CELLS = ((240.0, 20.0), (90.0, 60.0))
HEADS = {"n_layer": 2, "n_head_kv": 2}
OPTIONS = {"budget": BUDGET, "block": 32, "recent": 10}


def with_table(path, folder, cells=CELLS):
    """A copy of a model with a table beside it."""
    copy = folder / "model.gguf"
    shutil.copy(path, copy)
    path_beside(copy).write_text(HeadShares(cells, 100, "replay", 1, 400).to_json())
    return copy


@pytest.fixture
def model(tiny_model, tmp_path):
    return with_table(tiny_model(**SHAPE, n_ctx_train=1024), tmp_path, CELLS + CELLS[: SHAPE["n_layer"] - 2])


stage = test_row_graphs.stage


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize(
    "spec",
    [
        "keydiff+heads",
        "keydiff(rope=off, kernel=5)+heads",
        "snapkv(window=20)+critical+heads",
        "tova+caote+heads(safeguard=0)",
        "h2o+heads(safeguard=1)",
        "ahakv+fastcaote+heads",
        "random+heads",
    ],
)
def test_heads_keep_what_the_reference_keeps(model, spec, kv_type):
    n_kept = read_and_check(model, SHAPE, spec, kv_type=kv_type, pinned=((40, 44),))
    assert n_kept[-1].sum() == BUDGET * n_kept[-1].size
    even = "safeguard=1" in spec
    assert (n_kept[-1] == BUDGET).all() == even
    assert even or (np.argsort(n_kept[-1].flat) == np.argsort(np.ravel(CELLS))).all()


@pytest.mark.parametrize(
    ("focus_policy", "reposition", "spread"),
    [
        ("snapkv+critical+heads", "auto", True),
        ("snapkv(window=64, kernel=15)+critical", "auto", False),
        (None, "auto", True),
        (None, "always", False),
        ("snapkv+heads", "always", True),
    ],
)
def test_a_probe_divides_as_its_policy_says(model, focus_policy, reposition, spread):
    """The default one as the runtime's policy does, unless keys are turned. What is said then is divided again."""
    w_o = w_o_of(model, SHAPE, parse_policy("snapkv+critical"))
    reference = Reference(**HEADS, w_o=w_o, rope=rope_of(model, SHAPE))
    rng = np.random.default_rng(6)
    tokens, probe = rng.integers(3, 250, 300).tolist(), rng.integers(3, 250, 40).tolist()
    options = {"policy": "keydiff+heads", "focus_policy": focus_policy, "reposition": reposition, **OPTIONS}
    with recorded_runtime(model, **HEADS, before_compaction=reference, **options) as run:
        assert run.runtime.block_loop.read(tokens, lambda n: True, probe)
        assert run.runtime.block_loop.work.probes > 0
        assert (np.ptp(run.runtime.block_loop.cache.budgets()) > 0) == spread
        for token in rng.integers(3, 250, 100).tolist():
            run.step(token)
        assert np.ptp(run.runtime.block_loop.cache.budgets()) > 0
        reference.check(run.compactions)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("spec", ["keydiff+heads", "snapkv+caote+heads"])
def test_devices_divide_alike(model, stage, spec, kv_type):
    stage("graphs")
    read_and_check(model, SHAPE, spec, kv_type=kv_type)


@pytest.mark.parametrize("reposition", ["never", "always"])
def test_a_snapshot_goes_on_as_if_it_had_not_been(model, talkative_replies, reposition):
    with edgekv.Runtime(
        model, memory="4GiB", policy="keydiff+heads", reposition=reposition, threads=1, **OPTIONS
    ) as rt:
        session = rt.session()
        session.read(words(150))
        before = session.snapshot()
        first = talkative_replies(session)
        session.restore(before)
        assert talkative_replies(session) == first
        assert np.ptp(session.budgets()) > 0


@pytest.fixture
def talkative_replies(talkative):
    return lambda session: "".join(session.chat("What was it?", max_tokens=40))


@pytest.mark.usefixtures("talkative")
def test_saved_sessions_and_workers_go_on_alike(model, tmp_path):
    options = {"memory": "4GiB", "policy": "keydiff+heads", "threads": 1, **OPTIONS}
    replies, budgets = [], []
    for isolated in (False, True):
        with edgekv.Runtime(model, isolated=isolated, **options) as rt:
            session = rt.session()
            session.read(words(300))
            session.save(tmp_path / f"{isolated}.session")
            budgets.append(session.budgets())
            replies.append("".join(session.chat("What was it?", max_tokens=40)))
        with edgekv.Runtime(model, isolated=not isolated, **options) as rt:
            session = rt.load_session(tmp_path / f"{isolated}.session")
            replies.append("".join(session.chat("What was it?", max_tokens=40)))
    assert len(set(replies)) == 1
    assert budgets[0] == budgets[1]
    assert np.ptp(budgets[0]) > 0


@pytest.mark.usefixtures("talkative")
def test_sessions_at_once_divide_their_cells_as_each_does_alone(tiny_model, tmp_path):
    """Products of these weights are to the bit what they are alone, whichever sessions happen to share a step."""
    path = tiny_model(**SHAPE, n_ctx_train=1024, quantization="Q8_0")
    model = with_table(path, tmp_path, CELLS + CELLS[: SHAPE["n_layer"] - 2])

    def conversation(session, i):
        session.read(words(200 + 40 * i, f"book{i}-"))
        return "".join(session.chat("What was it?", max_tokens=40)), session.budgets()

    options = {"memory": "4GiB", "policy": "keydiff(rope=off)+heads", "threads": 1, "repack": False, **OPTIONS}
    with edgekv.Runtime(model, parallel=3, **options) as rt:
        found = together(rt, 3, conversation)
        assert found == [alone(rt, i, conversation) for i in range(3)]
    assert all(np.ptp(budgets) > 0 for _, budgets in found)


def test_scorers_of_ones_own_choose_within_their_heads(model):
    policies.register("longest", lambda keys: -np.linalg.norm(keys, axis=-1))
    try:
        reference = Reference(**HEADS)
        with recorded_runtime(model, **HEADS, policy="longest+heads", before_compaction=reference, **OPTIONS) as run:
            run.read(np.random.default_rng(5).integers(3, 250, 300).tolist())
            reference.check(run.compactions)
            assert np.ptp(run.runtime.block_loop.cache.budgets()) > 0
    finally:
        policies.unregister("longest")


@pytest.mark.parametrize("memory", ["4GiB"])
def test_without_a_table_nothing_opens(tiny_model, memory):
    path = tiny_model(n_layer=1)
    for isolated in (False, True):
        with pytest.raises(edgekv.ConfigError, match="edgekv heads --model"):
            edgekv.Runtime(path, memory=memory, policy="keydiff+heads", isolated=isolated, **OPTIONS)


def test_the_plan_holds_the_longest_head(model):
    """As for heads that share by their scores."""
    named = {"memory": "4GiB", "threads": 1, **OPTIONS}
    plans = [edgekv.plan(model, policy=f"keydiff+{wrapper}", **named) for wrapper in ("heads", "pyramid")]
    assert plans[0].n_cells_max == plans[1].n_cells_max > BUDGET * 3
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(edgekv.Runtime(model, policy="keydiff+heads", **named))
        cache = runtime.block_loop.cache
        assert cache.bookkeeping_bytes <= plans[0].parts.bookkeeping


def test_no_cells_without_shares(model):
    with recorded_runtime(model, **HEADS, policy="keydiff+pyramid", **OPTIONS) as run:
        cache = run.runtime.block_loop.cache
        cache.feed(list(range(3, 35)))
        with pytest.raises(edgekv.ConfigError, match="shares is NULL"):
            cache.compact(parse_policy("keydiff+heads"), 20)
        with pytest.raises(edgekv.ConfigError, match="shares of 3 heads do not fit a model of 4"):
            cache.share_by([[1, 2], [3]])


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("budgets", [(MOST_DIVIDED + 1, 60), (60, 40), (40, 60)])
def test_sessions_go_on_under_the_default_of_fewer_cells(model, tmp_path, budgets):
    """Few named cells are divided over heads, and more are not."""
    options = {"memory": "4GiB", "threads": 1, "block": 32, "recent": 10}
    policies_of = []
    for budget, file in zip(budgets, (None, tmp_path / "a.session"), strict=True):
        with edgekv.Runtime(model, budget=budget, **options) as rt:
            policies_of.append(rt.options.parsed_policy.spec)
            session = rt.session() if file is None else rt.load_session(file)
            session.read(words(200))
            assert "".join(session.chat("What was it?", max_tokens=20))
            assert np.mean(session.budgets()) <= budget
            session.save(tmp_path / "a.session")
    assert policies_of == [MERGED_POLICY if budget <= MOST_DIVIDED else UNTURNED_POLICY for budget in budgets]


def test_the_default_of_few_cells_has_means_beside_an_archive(model):
    with edgekv.Runtime(model, memory="4GiB", threads=1, budget=60, block=32, archive="1MiB") as rt:
        assert (rt.options.parsed_policy.spec, rt.options.archives) == (MERGED_POLICY, True)


@pytest.mark.parametrize(
    ("saved", "opened"),
    [("keydiff", "keydiff(rope=off)"), ("keydiff", DIVIDED_POLICY), (DIVIDED_POLICY, MERGED_POLICY)],
)
def test_sessions_go_on_under_a_later_default(model, tmp_path, saved, opened):
    options = {"memory": "4GiB", "threads": 1, **OPTIONS}
    with edgekv.Runtime(model, policy=saved, **options) as rt:
        session = rt.session()
        session.read(words(100))
        session.save(tmp_path / "a.session")
    with edgekv.Runtime(model, policy=opened, **options) as rt:
        session = rt.load_session(tmp_path / "a.session")
        session.read(words(200))
        session.save(tmp_path / "b.session")
    with edgekv.Runtime(model, policy=saved, **options) as rt, pytest.raises(edgekv.SessionFileError, match="policy="):
        rt.load_session(tmp_path / "b.session")


def test_other_policies_have_to_be_the_same(model, tmp_path):
    """Even heads cannot hold what was divided."""
    options = {"memory": "4GiB", "threads": 1, **OPTIONS}
    with edgekv.Runtime(model, **options) as rt:
        session = rt.session()
        session.read(words(100))
        session.save(tmp_path / "a.session")
    for policy in ("keydiff+heads", "keydiff", "tova"):
        with (
            edgekv.Runtime(model, policy=policy, **options) as rt,
            pytest.raises(edgekv.SessionFileError, match="policy="),
        ):
            rt.load_session(tmp_path / "a.session")


def test_even_cells_of_a_model_without_a_table_are_told(tiny_model, model, caplog):
    caplog.set_level("INFO", "edgekv")
    plain = tiny_model(**SHAPE, n_ctx_train=1024)

    def even(path, **named):
        caplog.clear()
        with edgekv.Runtime(path, memory="1GiB", **named) as runtime, runtime.session() as session:
            list(session.chat("Who?", max_tokens=1))
            return session.stats.even_cells, caplog.text.count("has no table of its heads")

    assert even(plain, budget=BUDGET) == (True, 1)
    assert f"each keeps {BUDGET} cells" in caplog.text
    assert even(plain) == even(plain, budget=BUDGET, policy="keydiff") == (True, 0)
    assert even(model, budget=BUDGET) == even(plain, budget=BUDGET, policy="keydiff+ada") == (False, 0)
