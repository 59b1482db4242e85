"""`score` and `select` on arrays: edges, protected cells, and what a wrong argument is answered."""

from __future__ import annotations

import numpy as np
import pytest
from policy_arrays import BACKENDS, BY_ARRAYS, SMALL, SPECS, all_arrays, beside, names_read, needed

from edgekv import BudgetError, ConfigError, PolicyError
from edgekv.policies import parse_policy
from edgekv.scoring import budgets, score, select

# ---- edges ----


@pytest.mark.parametrize(("spec", "backend"), beside(SPECS, BACKENDS))
def test_everything_stays_within_the_budget(spec, backend):
    """No cell is evicted if none must be, whatever is protected."""
    for n, budget in [(0, 3), (1, 1), (1, 5), (30, 30), (30, 31)]:
        arguments = needed(spec, SMALL, budget=budget)
        cells = ("keys", "positions", "values", "accumulated")
        arguments |= {name: arguments[name][:, :n] for name in cells if name in arguments}
        scores = score(spec, **arguments, backend=backend)
        assert scores.shape == (SMALL.heads, n)
        assert scores.dtype == np.float32
        assert np.isfinite(scores).all()
        kept = select(spec, **arguments, n_sink=1000, recent=1000, backend=backend)
        for cells, positions in zip(kept, arguments["positions"], strict=True):
            np.testing.assert_array_equal(cells, np.argsort(positions))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["tova", "snapkv", "h2o", "ahakv", "tova+caote", "snapkv+fastcaote", "h2o+critical"])
def test_rows_before_all_cells_see_nothing(spec, backend):
    """No cell is attended to: all score alike, but for what accumulated, and the newest stay."""
    arguments = needed(spec, SMALL, backend=backend)
    arguments |= {"query_positions": np.arange(-SMALL.rows, 0), "accumulated": None, "w_o": None}
    if "critical" in spec:
        arguments["w_o"] = np.ones((4, SMALL.d_v, 2))
        arguments["values"] = np.ones((SMALL.heads, SMALL.n, SMALL.d_v))
    for cells, where in zip(select(spec, **arguments), arguments["positions"], strict=True):
        np.testing.assert_array_equal(where[cells], np.sort(where)[-arguments["budget"] :])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", BY_ARRAYS)
def test_what_is_left_out_has_its_default(spec, backend):
    arguments = needed(spec, SMALL, backend=backend)
    arguments |= {"scale": None, "softcap": 0, "query_positions": None, "tokens_seen": None}
    newest = int(arguments["positions"].max())
    spelt = arguments | {
        "scale": 1 / np.sqrt(SMALL.d),
        "query_positions": np.arange(newest - SMALL.rows + 1, newest + 1),
        "tokens_seen": newest + 1,
    }
    np.testing.assert_array_equal(score(spec, **arguments), score(spec, **spelt))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["tova", "snapkv(kernel=1)", "h2o", "ahakv"])
@pytest.mark.parametrize(
    "change",
    [{"scale": 0.5}, {"softcap": 1.0}, {"sinks": SMALL.heads * SMALL.group * [5.0]}, {"tokens_seen": 100_000}],
    ids=str,
)
def test_attention_is_the_models(spec, change, backend):
    """Scale, soft-cap and sinks change all attention weights; the tokens seen those that AhaKV sharpens."""
    arguments = needed(spec, SMALL, backend=backend)
    differ = (score(spec, **arguments) != score(spec, **arguments | change)).any()
    assert differ == (change.keys() != {"tokens_seen"} or spec == "ahakv")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", BY_ARRAYS)
def test_other_types_are_converted(spec, backend):
    arguments = needed(spec, SMALL, "float16", backend=backend)
    names = names_read(parse_policy(spec))
    others = {name: arguments[name].astype(np.float64) for name in names}
    others |= {"positions": arguments["positions"].astype(np.int64)}
    np.testing.assert_allclose(score(spec, **arguments | others), score(spec, **arguments), rtol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", BY_ARRAYS)
def test_arrays_may_lie_in_any_order_in_memory(spec, backend):
    arguments = needed(spec, SMALL, backend=backend)
    turned = {name: np.asfortranarray(array) for name, array in arguments.items() if isinstance(array, np.ndarray)}
    np.testing.assert_array_equal(score(spec, **arguments | turned), score(spec, **arguments))


# ---- protected cells ----


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["keydiff", "tova", "tova+caote", "tova+critical"])
@pytest.mark.parametrize(
    "protection",
    [
        {"n_sink": 11},
        {"recent": 11},
        {"pinned": [(20, 31)]},
        {"n_sink": 4, "recent": 4, "pinned": [(20, 22), (30, 31)]},
    ],
    ids=str,
)
def test_protected_cells_beyond_the_budget_are_an_error(protection, spec, backend):
    ones = np.ones((1, 50, 32))
    arrays = {"keys": ones, "values": ones, "queries": ones[:, :1], "w_o": np.ones((1, 32, 8))}
    arguments = arrays | {"positions": np.arange(50)[None], "backend": backend}
    with pytest.raises(BudgetError, match=r"11 protected cells exceed the budget of 10; raise the budget"):
        select(spec, **arguments, budget=10, **protection)
    (kept,) = select(spec, **arguments, budget=11, **protection)
    assert len(kept) == 11


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_beyond_the_budget_is_an_error(backend):
    arguments = needed("snapkv", SMALL, budget=31, backend=backend)
    for function in (select, budgets):
        with pytest.raises(BudgetError, match=r"32 protected cells exceed the budget of 31"):
            function("snapkv", **arguments)


@pytest.mark.parametrize("backend", BACKENDS)
def test_protections_that_overlap_count_once(backend):
    arguments = {"keys": np.ones((1, 50, 32)), "positions": np.arange(50)[None], "backend": backend}
    (kept,) = select("keydiff", **arguments, budget=10, n_sink=8, recent=2, pinned=[(0, 8), (4, 6), (49, 60)])
    np.testing.assert_array_equal(kept, [*range(8), 48, 49])


# ---- wrong arguments ----


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", BY_ARRAYS)
def test_missing_arrays_are_named(spec, backend):
    policy = parse_policy(spec)
    arguments = needed(spec, SMALL, backend=backend)
    for name in names_read(policy) - {"keys", "accumulated"}:
        with pytest.raises(ConfigError, match=rf"reads .*give .*{name}=") as error:
            score(spec, **arguments | {name: None})
        assert str(error.value).startswith(policy.spec)
    if "budget" in policy.reads:
        with pytest.raises(ConfigError, match=r"reads budget; give budget="):
            score(spec, **arguments | {"budget": None})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"positions": np.arange(9)[None]}, r"keys \(1, 10, 32\) and positions \(1, 9\) do not match"),
        ({"positions": np.arange(10)}, r"positions \(10,\) do not match"),
        ({"positions": np.arange(10)[None] + 0.5}, r"positions must be whole numbers .* they are float64"),
        ({"positions": np.arange(10)[None] + (1 << 31)}, r"positions must be whole numbers in \[-2\*\*31, 2\*\*31\)"),
        ({"keys": np.ones((10, 32))}, r"keys \(10, 32\)"),
        ({"keys": np.ones((1, 10, 0))}, r"keys \(1, 10, 0\) hold no head, or no element"),
        ({"keys": np.ones((0, 10, 4)), "positions": np.ones((0, 10), int)}, r"keys \(0, 10, 4\) hold no head"),
        ({"values": np.ones((1, 9, 32))}, r"values \(1, 9, 32\) does not match the keys; give \(1, 10, any\)"),
        ({"values": np.ones((10, 32))}, r"values \(10, 32\)"),
        ({"queries": np.ones((2, 3, 31))}, r"queries \(2, 3, 31\) does not match the keys; give \(any, any, 32\)"),
        ({"queries": np.ones((0, 3, 32))}, r"queries has 0 heads"),
        ({"queries": np.ones((2, 0, 32))}, r"queries hold no row"),
        ({"query_positions": [7, 8]}, r"query_positions \(2,\) must hold 3 ascending positions"),
        ({"query_positions": [7, 9, 8]}, r"must hold 3 ascending positions"),
        ({"query_positions": [7, 8, 8]}, r"must hold 3 ascending positions"),
        ({"query_positions": [7, 8, 8.5]}, r"query_positions must be whole numbers"),
        ({"accumulated": np.ones((1, 9))}, r"accumulated \(1, 9\) does not match the keys; give \(1, 10\)"),
        ({"w_o": np.ones((2, 5, 8))}, r"w_o \(2, 5, 8\) does not match the keys; give \(any, 32, any\)"),
        ({"w_o": np.ones((3, 32, 8))}, r"queries have 2 heads and w_o 3; give both for n_head heads"),
        ({"budget": 0}, "budget=0"),
        ({"budget": -1}, "budget=-1"),
        ({"budget": 1 << 31}, "budget=2147483648"),
        ({"budget": 2.5}, "budget=2.5 is not possible; give a whole number"),
        ({"tokens_seen": 0}, r"tokens_seen=0 is not possible; give a whole number in \[1,"),
        ({"tokens_seen": 1 << 31}, "tokens_seen=2147483648"),
        ({"layer": -1}, "layer=-1"),
        ({"scale": 0.0}, "scale=0.0 is not possible; give a number above 0"),
        ({"scale": np.nan}, "scale=nan"),
        ({"scale": np.inf}, "scale=inf"),
        ({"softcap": -1.0}, "softcap=-1.0"),
        ({"softcap": np.nan}, "softcap=nan"),
        ({"n_sink": -1}, "n_sink=-1"),
        ({"n_sink": 1 << 32}, "n_sink=4294967296"),
        ({"recent": -1}, "recent=-1"),
        ({"pinned": [(5, 3)]}, r"\[5, 3\)"),
        ({"pinned": [(0, 1 << 31)]}, r"\[0, 2147483648\)"),
        ({"backend": "numpy"}, "backend='numpy' is unknown; possible: native, reference"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_named(wrong, message):
    ones = np.ones((1, 10, 32))
    arguments = {"keys": ones, "values": ones, "queries": np.ones((2, 3, 32)), "w_o": np.ones((2, 32, 8))}
    arguments |= {"positions": np.arange(10)[None], "budget": 5, "backend": "reference"}
    select("snapkv(window=3)+critical", **arguments)
    with pytest.raises(ConfigError, match=message):
        select("snapkv(window=3)+critical", **arguments | wrong)


@pytest.mark.parametrize("heads", [1, 3])
def test_query_heads_are_a_multiple_of_kv_heads(heads):
    arrays = all_arrays(SMALL)
    arguments = {"keys": arrays["keys"], "positions": arrays["positions"], "queries": np.ones((heads, 1, SMALL.d))}
    with pytest.raises(ConfigError, match=rf"queries has {heads} heads, which is no multiple of the 2 KV heads"):
        score("tova", **arguments, backend="reference")


def test_unknown_arguments_and_policies_are_refused():
    with pytest.raises(TypeError, match="quries"):
        score("tova", keys=np.ones((1, 1, 4)), positions=[[0]], quries=np.ones((1, 1, 4)))
    with pytest.raises(PolicyError, match="'nonsense' is unknown"):
        score("nonsense", keys=np.ones((1, 1, 4)), positions=[[0]])
