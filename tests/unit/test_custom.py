"""Scorers of one's own: what they are given, what becomes of what they return, and how they are named."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from edgekv import ConfigError, NativeError, PolicyError, policies, scoring
from edgekv.policies import POLICIES, WRAPPERS, Caote, Custom, KeyDiff, Policy, Scorer, Sink, Tova, parse_policy
from edgekv.policies.base import option
from edgekv.policies.custom.python_policy import PythonPolicy

BACKENDS = ("native", "reference")
N_HEAD_KV, GROUP, N, D, D_V, N_ROWS = 2, 3, 40, 16, 8, 5


@pytest.fixture
def register():
    """`edgekv.policies.register`; what it registered is forgotten afterwards."""
    names = []

    def call(name, *args, **options):
        policies.register(name, *args, **options)
        names.append(name)

    yield call
    for name in set(names):
        policies.unregister(name)


@pytest.fixture
def arrays():
    """Arrays of a layer, with cells in no order."""
    rng = np.random.default_rng(7)
    positions = [rng.permutation(rng.choice(4 * N, N - 1, replace=False)) for _ in range(N_HEAD_KV)]
    return {
        "keys": rng.standard_normal((N_HEAD_KV, N, D), dtype=np.float32),
        "values": rng.standard_normal((N_HEAD_KV, N, D_V), dtype=np.float32),
        "queries": rng.standard_normal((N_HEAD_KV * GROUP, N_ROWS, D), dtype=np.float32),
        "positions": np.array([[*row, 4 * N] for row in positions], dtype=np.int32),
    }


def negative_norm(keys):
    return -np.linalg.norm(keys, axis=2)


def newest_attention(keys, queries):
    """Return tova's scores: attention of the newest row, mean over the query heads of each KV head."""
    newest = queries[:, -1].reshape(len(keys), -1, keys.shape[2])
    logits = newest @ keys.transpose(0, 2, 1) / np.sqrt(np.float32(keys.shape[2]))
    weights = np.exp(logits - logits.max(axis=2, keepdims=True))
    return (weights / weights.sum(axis=2, keepdims=True)).mean(axis=1)


def assert_same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


# ---- what a scorer is given ----


def test_a_scorer_is_given_what_its_parameters_name(register, arrays):
    calls = []

    def see(keys, values, queries, positions):
        calls.append((keys, values, queries, positions))
        return np.zeros(positions.shape, dtype=np.float32)

    register("see", see, rows=3)
    halves = {name: arrays[name].astype(np.float16) for name in ("keys", "values")}
    scoring.score("see", **arrays | halves)
    assert len(calls) == N_HEAD_KV
    for g, (keys, values, queries, positions) in enumerate(calls):
        order = np.argsort(arrays["positions"][g])
        np.testing.assert_array_equal(keys, halves["keys"][g, order][None])
        np.testing.assert_array_equal(values, halves["values"][g, order][None])
        np.testing.assert_array_equal(positions, arrays["positions"][g, order][None])
        np.testing.assert_array_equal(queries, arrays["queries"][g * GROUP : (g + 1) * GROUP, -3:])
        assert [a.dtype for a in (keys, values, queries, positions)] == [np.float32] * 3 + [np.int32]
        assert not any(a.flags.writeable for a in (keys, values, queries, positions))


def test_a_scorer_is_given_nothing_else(register, arrays):
    given = []

    class Positions:
        def __call__(self, *, positions):
            given.append(positions)
            return positions.astype(np.float32)

    register("newest", Positions())
    policy = parse_policy("newest")
    assert policy.reads == frozenset()
    assert policy.scorer.reads == {"positions"}
    assert policy.n_rows(128) == policy.scorer.n_rows == 0
    scores = scoring.score("newest", keys=arrays["keys"], positions=arrays["positions"])
    np.testing.assert_array_equal(scores, arrays["positions"])


def test_a_whole_layer_in_one_call(arrays):
    """As the native library calls it: every KV head, and arrays that the scorer does not read may be left out."""
    scorer = Scorer.of("norm", negative_norm)
    found = scorer(keys=arrays["keys"], positions=arrays["positions"])
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, negative_norm(arrays["keys"]))
    assert arrays["keys"].flags.writeable


def test_what_a_scorer_reads_must_be_given(register, arrays):
    register("attention", newest_attention)
    assert parse_policy("attention").reads == {"queries"}
    with pytest.raises(ConfigError, match="attention reads queries; give queries="):
        scoring.score("attention", keys=arrays["keys"], positions=arrays["positions"])
    with pytest.raises(ConfigError, match="attention reads queries; give queries="):
        Scorer.of("attention", newest_attention)(keys=arrays["keys"], positions=arrays["positions"])


def attended_behind(keys, queries, positions, query_positions):
    """For each cell the number of rows that stand behind it."""
    behind = positions[:, :, None] < query_positions
    return behind.sum(axis=2).astype(np.float32)


def test_a_scorer_may_be_given_where_the_rows_stand(register, arrays):
    register("behind", attended_behind, rows=3)
    assert parse_policy("behind").scorer.reads == {"keys", "queries", "positions"}
    rows = np.array([1, 50, 60, 70, 500], dtype=np.int32)
    found = scoring.score("behind", query_positions=rows, **arrays)
    np.testing.assert_array_equal(found, (arrays["positions"][:, :, None] < rows[-3:]).sum(axis=2))


def test_a_scorer_may_be_given_the_sinks(register, arrays):
    """The scorer gets the sinks of a call's heads, or None if the model has none."""
    given = []

    def see(keys, queries, sinks):
        given.append(sinks)
        return np.zeros(keys.shape[:2], dtype=np.float32)

    register("see", see)
    sinks = np.arange(N_HEAD_KV * GROUP, dtype=np.float32)
    scoring.score("see", sinks=sinks, **arrays)
    np.testing.assert_array_equal(given, np.split(sinks, N_HEAD_KV))
    assert not any(found.flags.writeable for found in given)
    given.clear()
    scoring.score("see", **arrays)
    assert given == N_HEAD_KV * [None]


def test_rows_are_the_newest_unless_said_otherwise(arrays):
    ordered = {name: arrays[name] for name in ("keys", "queries")} | {"positions": np.sort(arrays["positions"], axis=1)}
    scorer = Scorer.of("behind", attended_behind)
    newest = np.arange(4 * N - N_ROWS + 1, 4 * N + 1)
    np.testing.assert_array_equal(scorer(**ordered), (ordered["positions"][:, :, None] < newest).sum(axis=2))
    probe = newest + N_ROWS
    assert (scorer(query_positions=probe, **ordered) == N_ROWS).all()


def test_no_cells_no_call(register):
    def never(keys):
        raise AssertionError

    register("never", never)
    assert scoring.score("never", keys=np.zeros((1, 0, 4)), positions=np.zeros((1, 0), dtype=int)).shape == (1, 0)


# ---- what becomes of its scores ----


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "tail", ["", "+caote", "+fastcaote", "+critical", "+caote+critical(alpha=0.25)", "+caote+pyramid"]
)
@pytest.mark.parametrize(
    ("own", "weights", "built_in"), [(negative_norm, False, "l2norm"), (newest_attention, True, "tova")]
)
def test_as_the_built_in_policy_of_the_same_formula(register, arrays, own, weights, built_in, tail, backend):
    """Scores and kept cells, under every wrapper: a softmax comes in where scores may be negative, and only there."""
    register("own", own, weights=weights)
    arrays["w_o"] = np.random.default_rng(3).standard_normal((N_HEAD_KV * GROUP, D_V, 12))
    arrays["budget"] = 15
    found, expected = (
        scoring.score(spec + tail, backend=how, **arrays) for spec, how in (("own", backend), (built_in, "reference"))
    )
    assert_same(found, expected)
    rules = arrays | {"n_sink": 2, "recent": 3}
    kept = zip(
        scoring.select("own" + tail, backend=backend, **rules),
        scoring.select(built_in + tail, backend="reference", **rules),
        strict=True,
    )
    for cells, reference in kept:
        np.testing.assert_array_equal(cells, reference)


@pytest.mark.parametrize("tail", ["+ada", "+critical+ada", "+pyramid+ada"])
def test_heads_cannot_compare_what_it_scores(register, tail):
    register("own", newest_attention, weights=True)
    with pytest.raises(PolicyError, match="ada compares the scores of heads, which own cannot; possible: h2o, tova"):
        parse_policy(f"own{tail}")


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_floats_are_converted(arrays, dtype):
    scorer = Scorer.of("newest", lambda positions: positions.astype(dtype)[:, ::-1])
    found = scorer(positions=arrays["positions"])
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, arrays["positions"][:, ::-1])


def raises(keys):
    return 1 / 0


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (raises, PolicyError, "scorer bad failed: ZeroDivisionError: division by zero"),
        (lambda keys: None, PolicyError, "scorer bad returned object; return float32"),
        (
            lambda keys: np.zeros(keys.shape[:2], dtype=np.int64),
            PolicyError,
            "scorer bad returned int64; return float32",
        ),
        (lambda keys: np.zeros(keys.shape[:2], dtype=bool), PolicyError, "scorer bad returned bool"),
        (lambda keys: np.zeros(keys.shape[:2], dtype=complex), PolicyError, "scorer bad returned complex128"),
        (lambda keys: [[1.0], [1.0, 2.0]], PolicyError, "scorer bad failed: ValueError"),
        (
            lambda keys: np.float32(0),
            PolicyError,
            r"scorer bad returned shape \(\); return \(n_head_kv, n\), here \(1, 40\)",
        ),
        (lambda keys: np.zeros(keys.shape[1]), PolicyError, r"returned shape \(40,\)"),
        (lambda keys: np.zeros((1, keys.shape[1] - 1)), PolicyError, r"returned shape \(1, 39\)"),
        (lambda keys: np.zeros((keys.shape[1], 1)), PolicyError, r"returned shape \(40, 1\)"),
        (lambda keys: np.full(keys.shape[:2], np.nan), NativeError, "scorer bad gave position .* the score nan"),
        (lambda keys: np.full(keys.shape[:2], -np.inf), NativeError, "the score -inf"),
        (lambda keys: np.full(keys.shape[:2], 1e200), NativeError, "the score inf"),
    ],
)
@pytest.mark.parametrize("spec", ["bad", "bad+caote"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_score_is_an_error_that_names_the_scorer(register, arrays, function, error, says, spec, backend):
    register("bad", function)
    with pytest.raises(error, match=says):
        scoring.score(spec, backend=backend, **arrays)
    with pytest.raises(error, match=says):
        scoring.select(spec, budget=10, backend=backend, **arrays)


def test_the_cell_without_a_finite_score_is_named(arrays):
    def one(keys):
        scores = np.zeros(keys.shape[:2], dtype=np.float32)
        scores[1, 4] = np.nan
        return scores

    scorer = Scorer.of("one", one)
    with pytest.raises(NativeError, match=f"position {arrays['positions'][1, 4]} of KV head 1"):
        scorer(keys=arrays["keys"], positions=arrays["positions"])
    with pytest.raises(NativeError, match="cell 4 of KV head 1"):
        scorer(keys=arrays["keys"])


def test_weights_that_are_negative_are_an_error(register, arrays):
    register("own", negative_norm, weights=True)
    with pytest.raises(PolicyError, match="scorer own says weights=True, but gave -"):
        scoring.score("own", **arrays)


def test_a_scorer_cannot_change_what_it_is_given(register, arrays):
    def spoil(keys):
        keys[:] = 0

    register("spoil", spoil)
    with pytest.raises(PolicyError, match=r"scorer spoil failed: ValueError: .*read-only"):
        scoring.score("spoil", **arrays)


# ---- names ----


@pytest.mark.parametrize("name", [*POLICIES, *WRAPPERS, "onnx"])
def test_built_in_names_are_taken(name):
    with pytest.raises(PolicyError, match=f"policy '{name}' is built in; give another name"):
        policies.register(name, negative_norm, replace=True)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a(b)", "a=b", "onnx:x.onnx", "a\n", 7])
def test_a_name_must_fit_the_grammar(name):
    with pytest.raises(PolicyError, match="give letters, digits, - and _"):
        policies.register(name, negative_norm)


def test_a_name_is_registered_once_unless_replaced(register, arrays):
    register("own", negative_norm, summary="first")
    with pytest.raises(PolicyError, match="'own' is registered already; give another name, or replace=True"):
        policies.register("own", newest_attention)
    first = parse_policy("own")
    assert first.summary == "first"
    assert parse_policy("own") == first
    register("own", lambda positions: positions.astype(np.float32), replace=True)
    np.testing.assert_array_equal(scoring.score("own", **arrays), arrays["positions"])
    assert_same(scoring.score(first, **arrays), scoring.score("l2norm", backend="reference", **arrays))


def test_a_name_that_could_not_be_registered_keeps_its_scorer(register, arrays):
    register("own", negative_norm)
    with pytest.raises(PolicyError):
        policies.register("own", lambda key: key, replace=True)
    assert parse_policy("own").scorer.function is negative_norm


def test_an_unregistered_name_is_unknown(register):
    register("one", negative_norm)
    policies.register("two", negative_norm)
    policies.unregister("two")
    with pytest.raises(PolicyError, match=r"policy 'two' is unknown; possible: keydiff, .*, one, onnx:PATH\.onnx"):
        parse_policy("two")
    with pytest.raises(PolicyError, match="'two' is not registered; registered: one"):
        policies.unregister("two")


@pytest.mark.parametrize("spec", ["own", " own ( ) ", "own+caote", "own+fastcaote+critical(alpha=0.25)"])
def test_spelt_as_any_other(register, spec):
    register("own", negative_norm)
    policy = parse_policy(spec)
    assert policy.base == Custom(parse_policy("own").scorer)
    assert policy.spec == spec.replace(" ", "").replace("()", "")
    assert parse_policy(policy.spec) == policy


def test_a_function_has_no_options(register):
    register("own", negative_norm)
    with pytest.raises(PolicyError, match="own has no option 'window=3'; possible: none"):
        parse_policy("own(window=3)")


def positional(keys, /):
    return keys


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda key: key, "has the parameter key; possible by name: keys, values, queries, positions, query_positions"),
        (lambda keys, scale=1.0: keys, "has the parameter scale=1.0; possible by name"),
        (lambda *keys: keys, r"has the parameter \*keys; possible by name"),
        (lambda **keys: keys, r"has the parameter \*\*keys; possible by name"),
        (positional, "has the parameter keys; possible by name"),
        (lambda: None, "reads no cells; let it take keys, values or positions"),
        (lambda queries: None, "reads no cells; let it take keys, values or positions"),
        (lambda keys, query_positions: None, "takes query_positions without queries; let it take both"),
        (np.negative, "of some of keys|has the parameter"),
        ("keys", "'keys' is no function"),
        (KeyDiff, "is no function"),
        (Scorer.of("s", negative_norm), "is no function"),
    ],
)
def test_parameters_must_name_arrays(function, says):
    with pytest.raises(PolicyError, match=says):
        policies.register("own", function)
    with pytest.raises(PolicyError, match="'own' is unknown"):
        parse_policy("own")


def test_a_layer_without_cells_has_no_scores():
    def scores(keys, queries, query_positions):
        return np.zeros(keys.shape[:2], dtype=np.float32)

    keys, queries = np.empty((2, 0, 8), dtype=np.float32), np.ones((2, 3, 8), dtype=np.float32)
    positions = np.empty((2, 0), dtype=np.int32)
    assert Scorer.of("own", scores)(keys=keys, queries=queries, positions=positions).shape == (2, 0)


@pytest.mark.parametrize("rows", [0, -1, 4097, 1.5, True, "8", None])
def test_rows_must_be_a_count(rows):
    with pytest.raises(PolicyError, match=r"scorer own: rows=.* is not possible; give a whole number in \[1, 4096\]"):
        policies.register("own", newest_attention, rows=rows)


def test_rows_reach_the_native_library(register):
    register("own", newest_attention, rows=9)
    policy = parse_policy("own+caote")
    assert policy.n_rows(128) == 9
    fields = policy.native_fields()
    assert (fields["base"], fields["rows"], fields["softmax"]) == (8, 9, 1)


# ---- memory ----


def test_scratch_is_bounded_by_default(register):
    register("norm", negative_norm)
    register("attention", newest_attention, rows=5)
    assert parse_policy("norm").scratch_bytes(100, 2, 6, 16, 8) == 4 * 4 * (2 * 100 * 16)
    expected = 4 * 4 * (2 * 100 * 16 + 6 * 5 * (16 + 100))
    assert parse_policy("attention").scratch_bytes(100, 2, 6, 16, 8) == expected
    assert parse_policy("attention+caote+critical").scratch_bytes(100, 2, 6, 16, 8) == expected
    assert parse_policy("keydiff+caote").scratch_bytes(100, 2, 6, 16, 8) == 0


def test_scratch_may_be_declared(register):
    register("own", negative_norm, scratch_bytes=lambda n, n_head_kv, n_head, d_k, d_v: n + 2 * d_v + n_head + 0.5)
    assert parse_policy("own").scratch_bytes(1000, 2, 6, 16, 8) == 1023
    with pytest.raises(PolicyError, match="scratch_bytes=4096 is not callable"):
        policies.register("other", negative_norm, scratch_bytes=4096)


@pytest.mark.parametrize(
    ("scratch", "says"),
    [
        (lambda *sizes: -1, "returned -1; return a number of bytes"),
        (lambda *sizes: float("nan"), "returned nan"),
        (lambda *sizes: float("inf"), "returned inf"),
        (lambda *sizes: None, "scratch_bytes of scorer own failed: TypeError"),
        (lambda n: n, "scratch_bytes of scorer own failed: TypeError"),
    ],
)
def test_scratch_must_be_bytes(register, scratch, says):
    register("own", negative_norm, scratch_bytes=scratch)
    with pytest.raises(PolicyError, match=says):
        parse_policy("own").scratch_bytes(100, 2, 6, 16, 8)


# ---- packages ----

PACKAGE = '''
import numpy as np
from dataclasses import dataclass
from edgekv.policies import Head, KeyDiff, Policy, Scorer, SnapKV
from edgekv.policies.base import option

def norm(keys):
    """Function."""
    return -np.linalg.norm(keys, axis=2)

def misspelt(kees):
    return kees

scorer = Scorer.of("any name", lambda queries, positions: positions * np.float32(0.5), weights=True, rows=7)
number = 5

@dataclass(frozen=True)
class Old(Policy):
    name = "old"
    paper = "none"
    summary = "keep the oldest"
    reads = frozenset({"values"})
    weights = False
    factor: float = option(1.0, "of the position", minimum=0.5)

    def score(self, head):
        return -self.factor * head.positions + 0 * head.values[:, 0]

@dataclass(frozen=True)
class Broken(Policy):
    name = "broken-class"
    needed: int

class Nameless(Policy):
    pass
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package with entry points on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(entries, distribution="edgekv-zoo", module="edgekv_zoo", source=PACKAGE):
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{distribution.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        lines = [f"{name} = {module}:{attribute}\n" for name, attribute in entries.items()]
        (info / "entry_points.txt").write_text("[edgekv.policies]\n" + "".join(lines))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, module, raising=False)

    yield call
    for module in [name for name in sys.modules if name.startswith("edgekv_zoo")]:
        del sys.modules[module]


def test_a_package_brings_a_function(install, arrays):
    install({"zoo-norm": "norm"})
    found = scoring.score("zoo-norm", **arrays)
    assert_same(found, scoring.score("l2norm", backend="reference", **arrays))
    assert parse_policy("zoo-norm+caote").spec == "zoo-norm+caote"
    with pytest.raises(PolicyError, match="zoo-norm has no option 'kernel=3'; possible: none"):
        parse_policy("zoo-norm(kernel=3)")


def test_a_package_brings_a_scorer(install, arrays):
    install({"zoo_half": "scorer"})
    policy = parse_policy("zoo_half")
    assert (policy.spec, policy.weights, policy.n_rows(1)) == ("zoo_half", True, 7)
    np.testing.assert_array_equal(scoring.score(policy, **arrays), arrays["positions"] / 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_package_brings_a_policy_with_options(install, arrays, backend):
    install({"old": "Old"})
    policy = parse_policy("old(factor=2)")
    assert policy.spec == "old(factor=2)"
    assert parse_policy(policy.spec).inner == policy.inner
    assert policy.reads == {"values"}
    assert not policy.weights
    np.testing.assert_array_equal(scoring.score(policy, backend=backend, **arrays), -2.0 * arrays["positions"])
    with pytest.raises(PolicyError, match=r"old\(factor=0.1\): at least 0.5 is needed"):
        parse_policy("old(factor=0.1)")
    with pytest.raises(PolicyError, match="old has no option 'size=1'; possible: factor="):
        parse_policy("old(size=1)")


@pytest.mark.parametrize(
    ("name", "attribute", "says"),
    [
        ("gone", "nothing", "cannot be loaded: AttributeError"),
        ("number", "number", "is no function, Scorer or base policy: scorer number: 5 is no function"),
        ("misspelt", "misspelt", "scorer misspelt has the parameter kees; possible by name"),
        ("young", "Old", "has the name 'old'; give class and entry point the same"),
        ("nameless", "Nameless", "has the name None"),
    ],
)
def test_a_broken_entry_point_is_an_error_that_names_the_distribution(install, name, attribute, says):
    install({name: attribute})
    with pytest.raises(PolicyError, match=says) as error:
        parse_policy(name)
    assert "edgekv-zoo 1.5" in str(error.value)


def test_a_package_that_does_not_import_is_named(install):
    install({"zoo": "norm"}, source="import a_module_that_does_not_exist")
    with pytest.raises(PolicyError, match=r"'zoo' of edgekv-zoo 1.5 .* cannot be loaded: ModuleNotFoundError"):
        parse_policy("zoo")


def test_a_class_that_cannot_be_made_is_named(install):
    install({"broken-class": "Broken"})
    with pytest.raises(PolicyError, match="'broken-class' of edgekv_zoo fails: TypeError"):
        parse_policy("broken-class")


def test_two_packages_with_one_name(install):
    install({"zoo": "norm"})
    install({"zoo": "norm"}, distribution="edgekv-other", module="edgekv_zoo_other")
    with pytest.raises(PolicyError, match=r"several packages: .*; uninstall all but one") as error:
        parse_policy("zoo")
    assert "edgekv-zoo 1.5" in str(error.value)
    assert "edgekv-other 1.5" in str(error.value)


def test_packages_come_after_built_in_and_registered_names(install, register):
    install({"keydiff": "nothing", "own": "nothing"})
    register("own", negative_norm)
    assert parse_policy("keydiff") == KeyDiff()
    assert parse_policy("own").scorer.function is negative_norm


def test_packages_are_asked_only_for_unknown_names(monkeypatch):
    def asked(**group):
        raise AssertionError(group)

    monkeypatch.setattr(importlib.metadata, "entry_points", asked)
    assert parse_policy("keydiff+caote").base == KeyDiff()
    with pytest.raises(AssertionError, match=r"edgekv\.policies"):
        parse_policy("unknown")


def test_available_lists_all_and_imports_none(install, register):
    install({"zoo": "norm", "keydiff": "norm"}, source="raise SystemExit")
    register("own", negative_norm, summary="by norm")
    listed = policies.available()
    assert [entry.name for entry in listed] == [*POLICIES, "onnx:PATH.onnx", "own", "zoo", *WRAPPERS]
    entries = {entry.name: entry for entry in listed}
    assert (entries["own"].source, entries["own"].summary) == ("registered", "by norm")
    assert (entries["zoo"].source, entries["zoo"].summary) == ("edgekv-zoo 1.5", "edgekv_zoo:norm")
    assert entries["keydiff"].source == "built in"
    assert [field.name for field in entries["keydiff"].options] == [field.name for field in KeyDiff.options()]
    assert [field.name for field in entries["onnx:PATH.onnx"].options] == ["window", "weights", "scratch"]
    assert {entry.kind for entry in listed if entry.name in WRAPPERS} == {"wrapper"}
    assert all(entry.summary for entry in listed)


# ---- policies of one's own as classes ----


@dataclass(frozen=True)
class OwnTova(Tova):
    """A built-in policy with a formula of its own, which the native kernel does not know."""

    factor: float = option(3.0, "of the scores")

    def score(self, head):
        return self.factor * super().score(head)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_class_is_scored_by_its_own_formula(arrays, backend):
    found = scoring.score(OwnTova(), backend=backend, **arrays)
    assert_same(found, 3 * scoring.score("tova", backend="reference", **arrays))


def test_a_class_sees_the_sinks(arrays):
    sinks = np.linspace(-1, 4, N_HEAD_KV * GROUP, dtype=np.float32)
    found = scoring.score(OwnTova(), sinks=sinks, **arrays)
    assert_same(found, 3 * scoring.score("tova", backend="reference", sinks=sinks, **arrays))


def test_a_class_sees_where_the_rows_stand(arrays):
    rows = {"query_positions": np.array([1, 50, 60, 70, 90])}
    found = scoring.score(OwnTova(), **arrays, **rows)
    assert_same(found, 3 * scoring.score("tova", backend="reference", **arrays, **rows))


def test_a_class_scores_a_whole_layer(arrays):
    """The one call a layer that the native library makes gives what head by head does."""
    order = np.argsort(arrays["positions"], axis=1)
    ordered = {name: np.take_along_axis(arrays[name], order[:, :, None], axis=1) for name in ("keys", "values")}
    ordered |= {"queries": arrays["queries"], "positions": np.sort(arrays["positions"], axis=1)}
    found = parse_policy(OwnTova()).scorer(**ordered)
    assert_same(found, scoring.score(OwnTova(), **ordered))


def test_a_wrapped_class_is_scored_by_its_own_formula(arrays):
    wrapped = parse_policy(Caote(inner=OwnTova()))
    assert isinstance(wrapped.base, PythonPolicy)
    assert wrapped.spec == "tova+caote"
    assert wrapped.native_fields()["base"] == 8
    assert parse_policy(Caote(inner=KeyDiff())) == Caote(inner=KeyDiff())


def test_a_class_protects_its_own_cells(arrays):
    class OwnSink(Sink):
        def recent(self, budget):
            return budget // 2

    policy = parse_policy(OwnSink(n_sink=3))
    assert (policy.n_sink, policy.recent(10)) == (3, 5)


def test_a_class_bounds_its_own_memory():
    class Frugal(OwnTova):
        def scratch_bytes(self, *sizes):
            return 77

    assert parse_policy(Frugal()).scratch_bytes(100, 2, 6, 16, 8) == 77
    one_head = 4 * 4 * (100 * 16 + 100 + 3 * 1 * (16 + 100))
    assert parse_policy(OwnTova()).scratch_bytes(100, 2, 6, 16, 8) == 2 * one_head + 3 * 4 * 2 * 100


class Carries(Tova):
    carries = True


class Chooses(Tova):
    def keep(self, head, protection, budget=None):
        return np.arange(head.budget)


class Probes(Tova):
    def n_rows(self, block):
        return block


class Budgets(Tova):
    reads = frozenset({"queries", "budget", "wo_norm"})


class Shares(Tova):
    def head_budgets(self, heads, protection, largest=None):
        return [1 for _ in heads]


class Falls(Tova):
    def layer_budgets(self, n_layer, budget, n_protected, largest=None):
        return [budget + n_layer, *[budget] * (n_layer - 1)]


class Rowless(Tova):
    def n_rows(self, block):
        return 0


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Carries, "carried scores"),
        (Chooses, "a choice of its own"),
        (Shares, "budgets of its own"),
        (Falls, "budgets of its own"),
        (Probes, "rows that depend on the block"),
        (Budgets, "budget and wo_norm"),
        (Rowless, "queries without rows"),
    ],
)
def test_a_class_may_only_score(kind, says):
    with pytest.raises(PolicyError, match=f"needs {says}.*, which policies outside edgekv cannot have"):
        parse_policy(kind())


def test_custom_is_a_policy_like_any_other(arrays):
    policy = Custom(Scorer.of("own", negative_norm, summary="by norm"))
    assert isinstance(policy, Policy)
    assert parse_policy(policy) is policy
    assert (policy.name, policy.spec, policy.summary, policy.recent(100)) == ("own", "own", "by norm", 0)
    assert_same(scoring.score(policy, **arrays), scoring.score("l2norm", backend="reference", **arrays))
