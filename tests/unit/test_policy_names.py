"""The library's policies by name are those of Python's registry: names, options, defaults, limits and combinations."""

from __future__ import annotations

import ctypes
import itertools

import pytest

from edgekv.binding import library, structs
from edgekv.errors import ConfigError, PolicyError
from edgekv.policies import parse_policy
from edgekv.policies.registry import POLICIES, WRAPPERS

PROTECTIONS = {("keydiff", "window"), ("ahakv", "protect_recent"), ("sink", "n_sink")}  # no part of the struct
NAMED = {**POLICIES, **WRAPPERS}


def native(spec):
    """Return the fields of the policy that the library makes of a spec. Raises ConfigError."""
    policy = structs.Policy()
    library.call("edgekv_policy_parse", spec.encode(), ctypes.byref(policy))
    return policy.as_dict()


def python(spec):
    return structs.Policy(**parse_policy(spec).native_fields()).as_dict()


def is_possible(spec):
    try:
        parse_policy(spec)
    except PolicyError:
        return False
    return True


def is_taken(spec):
    try:
        native(spec)
    except ConfigError:
        return False
    return True


def around(name, options=""):
    """Return the spec of a base, or of a wrapper over one, with options."""
    return f"{name}{options}" if name in POLICIES else f"tova+{name}{options}"


def options_of(name):
    return [field for field in NAMED[name].options() if (name, field.name) not in PROTECTIONS]


def values_of(field):
    """Yield possible values of an option, and some that are beyond its limits."""
    limits = field.metadata
    if limits["choices"] or str(field.type) == "bool":
        yield from (*limits["choices"], "on", "OFF", "true", "nothing")
        return
    low, high = limits["minimum"], limits["maximum"]
    high = low + 100 if high is None else high
    yield from (low, high, -1, "x", "", "1.5", "3", "4")
    if high < 2**64 - 1:
        yield high + 1


def settings():
    for name in NAMED:
        for field in options_of(name):
            for spelt in filter(None, (field.name, field.metadata["alias"])):
                for value in values_of(field):
                    yield around(name, f"({spelt}={value})")


@pytest.mark.parametrize("name", NAMED)
def test_defaults(name):
    assert native(around(name)) == python(around(name))


def test_every_value_of_every_option():
    specs = list(settings())
    assert len(specs) > 150
    assert 0.3 < sum(map(is_possible, specs)) / len(specs) < 0.9
    assert [spec for spec in specs if is_taken(spec) != is_possible(spec)] == []
    assert [spec for spec in specs if is_possible(spec) and native(spec) != python(spec)] == []


def test_every_order_of_wrappers():
    """Over a base of weights, one that needs a softmax, and one that heads cannot compare."""
    specs = [
        "+".join((base, *wrappers))
        for base in ("snapkv", "keydiff", "l2norm", "sink")
        for n in range(4)
        for wrappers in itertools.product(WRAPPERS, repeat=n)
    ]
    possible = [spec for spec in specs if is_possible(spec)]
    assert len(possible) > 80
    assert [spec for spec in specs if is_taken(spec) != is_possible(spec)] == []
    assert [spec for spec in possible if native(spec) != python(spec)] == []


@pytest.mark.parametrize(
    "spec",
    [
        " snapkv ( W = 3 , kernel=5 ) + critical ",
        "keydiff()",
        "keydiff(anchor=pairwise, metric=cosine)+ada(safeguard=1e-1)",
        "snapkv(window=64, kernel=61, aggregate=max)",
    ],
)
def test_spellings(spec):
    assert native(spec) == python(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("keydif", "policy 'keydif' is unknown; possible: keydiff, snapkv"),
        ("", "policy '' is unknown"),
        ("+ada", "policy '' is unknown"),
        ("critical", "policy 'critical' is unknown"),
        ("keydiff+merg", "wrapper 'merg' is unknown; possible: caote"),
        ("keydiff+", "wrapper '' is unknown"),
        ("snapkv(kernel=4)", r"snapkv\(kernel=4\): an odd number in \[1, 1023\] is possible"),
        ("snapkv(kernel=3, kernel=5)", "snapkv is given kernel= twice"),
        ("snapkv(window=3, W=5)", "snapkv is given window= twice"),
        ("snapkv(size=3)", "option of snapkv 'size' is unknown; possible: window"),
        ("tova(size=3)", "possible: none"),
        ("snapkv(kernel=3", "is not spelt base"),
        ("snapkv(kernel=3)x", "is not spelt base"),
        ("snapkv)", "is not spelt base"),
        ("snapkv((kernel=3))", "is not spelt base"),
        ("keydiff+ada+ada", "ada cannot follow ada"),
        ("keydiff+ada+critical", "critical cannot follow ada"),
        ("sink+ada", "policy.spread compares the scores of heads"),
        (
            "keydiff(window=0.1)",
            r"keydiff\(window=0.1\) protects cells, which is no part of a policy",
        ),
    ],
)
def test_what_is_refused_is_said(spec, message):
    with pytest.raises(ConfigError, match=message):
        native(spec)


def test_a_refused_name_leaves_the_policy_as_it_was():
    policy = structs.Policy(base=3, kernel=5)
    with pytest.raises(ConfigError):
        library.call("edgekv_policy_parse", b"snapkv+nothing", ctypes.byref(policy))
    assert policy.as_dict() == structs.Policy(base=3, kernel=5).as_dict()
