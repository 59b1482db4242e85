"""The spelling of policies: what parses, what it means, and what a misspelling is answered."""

from __future__ import annotations

import dataclasses

import pytest

from edgekv import ConfigError, PolicyError
from edgekv.policies import POLICIES, KeyDiff, Random, Sink, parse_policy


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
        ("random(seed=18446744073709551615)", Random(seed=2**64 - 1)),
        (Random(seed=3), Random(seed=3)),
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
    ],
)
def test_canonical_spelling(spec, canonical):
    """`.spec` leaves defaults out, orders the rest as the class does, and means the same policy."""
    policy = parse_policy(spec)
    assert policy.spec == canonical
    assert parse_policy(canonical) == policy


def test_every_policy_has_a_name_a_paper_and_helped_options():
    for name, kind in POLICIES.items():
        assert kind.name == name
        assert parse_policy(name) == kind()
        assert kind.paper
        assert all(field.metadata["help"] for field in dataclasses.fields(kind))
    assert len({kind.native_base for kind in POLICIES.values()}) == len(POLICIES)


def test_policies_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        KeyDiff().window = 0.5


NAMES = "keydiff, sink, random"
OPTIONS = "kernel=, pool=, anchor=, metric=, window="


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        # names
        ("keydif", f"policy 'keydif' is unknown; possible: {NAMES}"),
        ("KeyDiff", f"'KeyDiff' is unknown; possible: {NAMES}"),
        ("snapkv(kernel=7)", f"'snapkv' is unknown; possible: {NAMES}"),
        # shapes
        ("", f"policy '' is not spelt base or base(key=value, ...); bases: {NAMES}"),
        ("keydiff(window=0.2", f"is not spelt base or base(key=value, ...); bases: {NAMES}"),
        ("keydiff window=0.2", f"bases: {NAMES}"),
        ("keydiff+ada", f"bases: {NAMES}"),
        ("keydiff;sink", f"bases: {NAMES}"),
        ("(window=0.2)", f"bases: {NAMES}"),
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
        ("sink(n_sink=None)", "a whole number is needed"),
        ("random(seed=-1)", "random(seed=-1): a value in [0, 18446744073709551615] is needed"),
        ("random(seed=18446744073709551616)", "a value in [0, 18446744073709551615] is needed"),
        # combinations
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
    ],
)
def test_classes_check_as_specs_do(kind, options):
    with pytest.raises(PolicyError):
        kind(**options)
