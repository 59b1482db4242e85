"""The spelling of policies: what parses, what it means, and what a misspelling is answered."""

from __future__ import annotations

import dataclasses

import pytest

from edgekv import ConfigError, PolicyError
from edgekv.policies import (
    H2O,
    POLICIES,
    WRAPPERS,
    Ada,
    AhaKV,
    Caote,
    Critical,
    FastCaote,
    KeyDiff,
    L2Norm,
    Pyramid,
    Random,
    Sink,
    SnapKV,
    Tova,
    parse_policy,
)


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ("keydiff", KeyDiff()),
        ("keydiff()", KeyDiff()),
        ("  keydiff ( ) ", KeyDiff()),
        ("keydiff(window=0.2)", KeyDiff(window=0.2)),
        ("keydiff(window=1)", KeyDiff(window=1)),
        ("keydiff(kernel=15, pool=max)", KeyDiff(kernel=15, pool="max")),
        ("keydiff( metric = dot ,anchor=mean )", KeyDiff(anchor="mean", metric="dot")),
        ("keydiff(anchor=unit-mean)", KeyDiff(anchor="unit-mean")),
        ("sink", Sink()),
        ("sink(n_sink=0)", Sink(n_sink=0)),
        ("sink(n_sink=none)", Sink()),
        ("random(seed=18446744073709551615)", Random(seed=2**64 - 1)),
        (Random(seed=3), Random(seed=3)),
        ("h2o", H2O()),
        ("tova()", Tova()),
        ("l2norm(kernel=3)", L2Norm(kernel=3)),
        ("snapkv", SnapKV(window=32, kernel=7, pool="avg")),
        ("snapkv(W=16, pool=max)", SnapKV(window=16, pool="max")),
        ("ahakv", AhaKV(r=32, kernel=7, floor=True, recent_accumulation=True, step_gain=True, value_prior=True)),
        ("ahakv(r=8, pool=3, floor=off, step_gain=False)", AhaKV(r=8, kernel=3, floor=False, step_gain=False)),
        ("ahakv(value_prior=true, recent_accumulation=OFF)", AhaKV(recent_accumulation=False)),
        ("tova+caote", Caote(Tova())),
        (" snapkv ( pool=max ) + fastcaote ( ) ", FastCaote(SnapKV(pool="max"))),
        ("keydiff+critical", Critical(KeyDiff(), alpha=0.5)),
        ("keydiff+caote+critical(alpha=1)", Critical(Caote(KeyDiff()), alpha=1)),
        ("snapkv(pool=max)+critical+ada(safeguard=0)", Ada(Critical(SnapKV(pool="max")), safeguard=0)),
        ("tova+caote+ada", Ada(Caote(Tova()))),
        ("snapkv+pyramid+ada", Ada(Pyramid(SnapKV(), beta=20.0), safeguard=0.2)),
        ("l2norm+fastcaote+critical+ada+pyramid", Pyramid(Ada(Critical(FastCaote(L2Norm()))))),
        ("sink+pyramid(beta=1)", Pyramid(Sink(), beta=1)),
        (Caote(Random(seed=3)), Caote(Random(seed=3))),
    ],
)
def test_spec_means_policy(spec, policy):
    assert parse_policy(spec) == policy
    assert type(parse_policy(spec)) is type(policy)


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("keydiff()", "keydiff"),
        ("keydiff(kernel=1,pool=avg,anchor=unit-mean,metric=cosine,window=0)", "keydiff"),
        ("keydiff( window=0.2,pool=max,  kernel=7)", "keydiff(kernel=7, pool=max, window=0.2)"),
        ("sink(n_sink=4)", "sink(n_sink=4)"),
        ("random(seed=0)", "random"),
        ("random(kernel=3, seed=5)", "random(kernel=3, seed=5)"),
        ("snapkv(W=8)", "snapkv(window=8)"),
        ("ahakv(floor=off, pool=7, r=16)", "ahakv(r=16, floor=off)"),
        ("snapkv(kernel=7)+caote()+critical(alpha=0.5)", "snapkv+caote+critical"),
        ("h2o + fastcaote", "h2o+fastcaote"),
        ("tova+pyramid(beta=20)+ada(safeguard=0.2)", "tova+pyramid+ada"),
        ("tova + ada( safeguard = 0 )", "tova+ada(safeguard=0)"),
    ],
)
def test_canonical_spelling(spec, canonical):
    """`.spec` leaves defaults out, orders the rest as the class does, and means the same policy."""
    policy = parse_policy(spec)
    assert policy.spec == canonical
    assert parse_policy(canonical) == policy


def test_every_policy_has_a_name_a_paper_a_summary_and_helped_options():
    for name, kind in POLICIES.items():
        assert kind.name == name
        assert parse_policy(name) == kind()
        assert list(kind.options()) == list(dataclasses.fields(kind))
    for name, kind in WRAPPERS.items():
        assert kind.name == name
        assert parse_policy(f"keydiff+{name}") == kind(KeyDiff())
        assert [field.name for field in dataclasses.fields(kind) if field not in kind.options()] == ["inner"]
    for kind in (*POLICIES.values(), *WRAPPERS.values()):
        assert kind.paper
        assert kind.summary
        assert all(field.metadata["help"] for field in kind.options())
    assert len({kind.native_base for kind in POLICIES.values()}) == len(POLICIES)


@pytest.mark.parametrize(
    "wrapping", ["", "+caote", "+critical", "+fastcaote+critical", "+pyramid", "+critical+pyramid"]
)
@pytest.mark.parametrize("base", POLICIES)
def test_a_wrapped_policy_is_its_base_and_more(base, wrapping):
    """Wrappers add arrays to read; the base decides rows, protection and carried values."""
    plain, policy = parse_policy(base), parse_policy(base + wrapping)
    assert policy.base == plain
    assert (policy.base is policy) == (not wrapping)
    reads = ({"values"} if "caote" in wrapping else set()) | ({"wo_norm"} if "critical" in wrapping else set())
    assert policy.reads == plain.reads | reads
    assert policy.n_rows(128) == plain.n_rows(128)
    assert policy.recent(512) == plain.recent(512)
    assert policy.carries == plain.carries
    assert not policy.shares
    assert not plain.shares
    assert parse_policy(policy.spec) == policy


@pytest.mark.parametrize("wrapping", ["+ada", "+caote+ada", "+critical+ada", "+pyramid+ada", "+critical+ada+pyramid"])
@pytest.mark.parametrize("base", ["h2o", "tova", "snapkv", "ahakv", "keydiff", "l2norm"])
def test_ada_goes_over_every_base_whose_scores_heads_can_compare(base, wrapping):
    plain, policy = parse_policy(base), parse_policy(base + wrapping)
    assert policy.base == plain
    assert policy.shares
    assert policy.reads == parse_policy(base + wrapping.replace("+ada", "").replace("+pyramid", "")).reads
    assert (policy.n_rows(128), policy.recent(512), policy.carries) == (
        plain.n_rows(128),
        plain.recent(512),
        plain.carries,
    )


def test_what_the_library_is_told_of_shared_budgets():
    """Of heads that compare scores which may be negative, that a softmax comes first; pyramid asks for none."""
    names = ("spread", "safeguard", "pyramid", "softmax")

    def told(spec):
        return tuple(parse_policy(spec).native_fields().get(name, 0) for name in names)

    assert told("snapkv") == told("keydiff") == (0, 0, 0, 0)
    assert told("snapkv+ada") == (1, 0.2, 0, 0)
    assert told("keydiff+ada(safeguard=0.5)") == (1, 0.5, 0, 1)
    assert told("keydiff+pyramid(beta=8)") == (0, 0, 8, 0)
    assert told("keydiff+pyramid+ada") == told("keydiff+ada+pyramid") == (1, 0.2, 20, 1)


@pytest.mark.parametrize(
    ("spec", "reads", "n_rows", "carries"),
    [
        ("keydiff", "", 0, False),
        ("h2o", "queries", 128, True),
        ("tova", "queries", 1, False),
        ("snapkv(window=5)", "queries", 5, False),
        ("ahakv(r=9)", "queries values budget", 9, False),
        ("ahakv(value_prior=off)", "queries budget", 32, False),
        ("ahakv(step_gain=off)", "queries values", 32, False),
        ("ahakv(recent_accumulation=off)", "queries values budget", 128, True),
    ],
)
def test_what_a_policy_asks_of_the_runtime(spec, reads, n_rows, carries):
    policy = parse_policy(spec)
    assert policy.reads == set(reads.split())
    assert policy.n_rows(128) == n_rows
    assert policy.carries == carries


def test_policies_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        KeyDiff().window = 0.5


NAMES = ", ".join([*POLICIES, "onnx:PATH.onnx"])
OPTIONS = "kernel=, pool=, anchor=, metric=, window="
SPELLING = "is not spelt base or base(key=value, ...)+wrapper(...); bases: " + NAMES


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        # names
        ("keydif", f"policy 'keydif' is unknown; possible: {NAMES}"),
        ("KeyDiff", f"'KeyDiff' is unknown; possible: {NAMES}"),
        ("snapkw(kernel=7)", f"'snapkw' is unknown; possible: {NAMES}"),
        ("keydiff+adda", "wrapper 'adda' is unknown; possible: caote, fastcaote, critical, ada, pyramid"),
        ("keydiff+sink", "wrapper 'sink' is unknown; possible: caote, fastcaote, critical, ada, pyramid"),
        ("caote", f"caote wraps a base, as in keydiff+caote; bases: {NAMES}"),
        ("critical+keydiff", f"critical wraps a base, as in keydiff+critical; bases: {NAMES}"),
        # shapes
        ("", f"policy '' {SPELLING}"),
        ("keydiff(window=0.2", SPELLING),
        ("keydiff window=0.2", SPELLING),
        ("keydiff+", SPELLING),
        ("+caote", SPELLING),
        ("keydiff++caote", SPELLING),
        ("snapkv(kernel=7+caote", SPELLING),
        ("snapkv(kernel=7)caote", "wrappers: caote, fastcaote, critical, ada, pyramid"),
        ("keydiff;sink", SPELLING),
        ("(window=0.2)", SPELLING),
        (None, f"policy None {SPELLING}"),
        (b"keydiff", SPELLING),
        # keys
        ("keydiff(windw=0.2)", f"keydiff has no option 'windw=0.2'; possible: {OPTIONS}"),
        ("keydiff(seed=1)", f"no option 'seed=1'; possible: {OPTIONS}"),
        ("keydiff(0.2)", f"no option '0.2'; possible: {OPTIONS}"),
        ("keydiff(window)", f"no option 'window'; possible: {OPTIONS}"),
        ("keydiff(window:0.2)", f"no option 'window:0.2'; possible: {OPTIONS}"),
        ("keydiff(=0.2)", f"no option '=0.2'; possible: {OPTIONS}"),
        ("sink(kernel=3)", "sink has no option 'kernel=3'; possible: n_sink="),
        ("random(seed=1, window=0.1)", "no option 'window=0.1'; possible: kernel=, pool=, seed="),
        ("keydiff(window=0.1, window=0.1)", "keydiff is given window= twice"),
        ("h2o(kernel=3)", "h2o has no option 'kernel=3'; possible: none"),
        ("snapkv(W=4, window=4)", "snapkv is given window= twice"),
        ("keydiff+caote(alpha=1)", "caote has no option 'alpha=1'; possible: none"),
        ("keydiff+caote(inner=sink)", "caote has no option 'inner=sink'; possible: none"),
        ("keydiff+critical(beta=2)", "critical has no option 'beta=2'; possible: alpha="),
        # values
        ("keydiff(anchor=middle)", "keydiff(anchor=middle): one of unit-mean, mean, median, pairwise is possible"),
        ("keydiff(anchor=1)", "one of unit-mean, mean, median, pairwise is possible"),
        ("keydiff(metric=L2)", "keydiff(metric=L2): one of cosine, dot, euclidean is possible"),
        ("keydiff(pool=min)", "keydiff(pool=min): one of avg, max is possible"),
        ("keydiff(pool='max')", "one of avg, max is possible"),
        ("keydiff(kernel=4)", "keydiff(kernel=4): an odd number is needed"),
        ("keydiff(kernel=0)", "keydiff(kernel=0): a value in [1, 1023] is needed"),
        ("keydiff(kernel=-3)", "a value in [1, 1023] is needed"),
        ("keydiff(kernel=1025)", "keydiff(kernel=1025): a value in [1, 1023] is needed"),
        ("keydiff(kernel=7.0)", "keydiff(kernel=7.0): a whole number is needed"),
        ("keydiff(kernel=seven)", "keydiff(kernel=seven): a whole number is needed"),
        ("keydiff(kernel=True)", "keydiff(kernel=True): a whole number is needed"),
        ("keydiff(kernel=)", "keydiff(kernel=): a whole number is needed"),
        ("keydiff(window=wide)", "keydiff(window=wide): a number is needed"),
        ("keydiff(window=1.1)", "keydiff(window=1.1): a value in [0.0, 1.0] is needed"),
        ("keydiff(window=-0.1)", "a value in [0.0, 1.0] is needed"),
        ("keydiff(window=nan)", "a value in [0.0, 1.0] is needed"),
        ("keydiff(window=inf)", "a value in [0.0, 1.0] is needed"),
        ("sink(n_sink=-1)", "sink(n_sink=-1): at least 0 is needed"),
        ("sink(n_sink=all)", "sink(n_sink=all): a whole number is needed"),
        ("random(seed=none)", "a whole number is needed"),
        ("random(seed=-1)", "random(seed=-1): a value in [0, 18446744073709551615] is needed"),
        ("random(seed=18446744073709551616)", "a value in [0, 18446744073709551615] is needed"),
        ("snapkv(window=0)", "snapkv(window=0): a value in [1, 4096] is needed"),
        ("snapkv(W=0)", "snapkv(window=0): a value in [1, 4096] is needed"),
        ("ahakv(r=4097)", "ahakv(r=4097): a value in [1, 4096] is needed"),
        ("ahakv(pool=avg)", "ahakv(kernel=avg): a whole number is needed"),
        ("ahakv(floor=maybe)", "ahakv(floor=maybe): on or off is possible"),
        ("ahakv(floor=1)", "ahakv(floor=1): on or off is possible"),
        ("tova+critical(alpha=1.01)", "critical(alpha=1.01): a value in [0.0, 1.0] is needed"),
        ("tova+ada(safeguard=1.01)", "ada(safeguard=1.01): a value in [0.0, 1.0] is needed"),
        ("tova+ada(safeguard=nan)", "ada(safeguard=nan): a value in [0.0, 1.0] is needed"),
        ("tova+ada(scope=model)", "ada has no option 'scope=model'; possible: safeguard="),
        ("tova+pyramid(beta=0.9)", "pyramid(beta=0.9): at least 1.0 is needed"),
        ("tova+pyramid(beta=nan)", "pyramid(beta=nan): at least 1.0 is needed"),
        ("tova+critical(alpha=nan)", "critical(alpha=nan): a value in [0.0, 1.0] is needed"),
        # combinations
        ("tova+critical+caote", "caote goes over a base, not over critical"),
        ("tova+caote+fastcaote", "fastcaote goes over a base, not over caote"),
        ("tova+caote+caote", "caote goes over a base, not over caote"),
        ("tova+critical+critical", "critical goes over a base or caote, fastcaote, not over critical"),
        *(
            (
                f"{base}+ada",
                f"ada compares the scores of heads, which {base} cannot; possible: h2o, tova, snapkv, ahakv",
            )
            for base in ("sink", "random")
        ),
        (
            "sink+critical+ada",
            "which sink cannot; possible: h2o, tova, snapkv, ahakv, keydiff, l2norm",
        ),
        ("tova+ada+ada", "ada goes over a base or caote, critical, fastcaote, pyramid, not over ada"),
        ("tova+pyramid+pyramid", "pyramid goes over a base or ada, caote, critical, fastcaote, not over pyramid"),
        ("tova+ada+pyramid+ada", "ada stands twice in tova+ada+pyramid+ada; give it once"),
        ("tova+pyramid+ada+pyramid", "pyramid stands twice in tova+pyramid+ada+pyramid; give it once"),
        ("tova+ada+critical", "critical goes over a base or caote, fastcaote, not over ada"),
        ("tova+pyramid+caote", "caote goes over a base, not over pyramid"),
        (
            "keydiff(anchor=pairwise, metric=dot)",
            "keydiff(anchor=pairwise) goes with metric=cosine, not with metric=dot",
        ),
        ("keydiff(anchor=pairwise, metric=euclidean)", "not with metric=euclidean"),
    ],
)
def test_misspelling_lists_what_is_possible(spec, answer):
    with pytest.raises(PolicyError) as error:
        parse_policy(spec)
    assert answer in str(error.value)
    assert isinstance(error.value, ConfigError)


@pytest.mark.parametrize(
    "value", ["-" * 100_000 + "1", "(" * 300 + "1", "9" * 5000, "1\0", "\udcff", "__import__('os')"]
)
def test_garbage_is_an_error_like_any_other(value):
    with pytest.raises(PolicyError):
        parse_policy(f"keydiff(kernel={value})")
    with pytest.raises(PolicyError):
        parse_policy(value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (KeyDiff, {"kernel": 2}),
        (KeyDiff, {"window": "0.2"}),
        (KeyDiff, {"anchor": "pairwise", "metric": "dot"}),
        (Random, {"seed": 1.5}),
        (Sink, {"n_sink": True}),
        (AhaKV, {"floor": 1}),
        (Caote, {"inner": Critical(Tova())}),
        (Critical, {"inner": Tova(), "alpha": 2}),
        (Ada, {"inner": Random()}),
    ],
)
def test_classes_check_as_specs_do(kind, options):
    with pytest.raises(PolicyError):
        kind(**options)
