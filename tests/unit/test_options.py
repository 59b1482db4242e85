"""Options of a runtime: defaults, limits, and messages that name value, limit and remedy."""

from __future__ import annotations

import dataclasses
import os

import pytest

from edgekv import BudgetError, ConfigError, Options, PolicyError
from edgekv.options import KV_TYPES
from edgekv.policies import KeyDiff, Sink, parse_policy


def test_defaults():
    options = Options()
    assert options.ceiling_bytes == 256 << 20
    assert options.parsed_policy == KeyDiff()
    assert options.n_threads >= 1
    assert options.budget is None
    assert (options.sinks, options.recent_cells(1000), options.spare_cells) == (4, 32, options.block)


def test_options_are_frozen_keyword_only_and_known():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().budget = 5
    with pytest.raises(TypeError):
        Options("256MiB")
    with pytest.raises(TypeError):
        Options(budgt=5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"block": 0}, "block=0 is not possible; give a whole number in [1, 4096]"),
        ({"block": 4097}, "block=4097 is not possible; give a whole number in [1, 4096]"),
        ({"block": 1.5}, "block=1.5 is not possible; give a whole number"),
        ({"block": "128"}, "block='128' is not possible; give a whole number"),
        ({"block": True}, "block=True is not possible; give a whole number"),
        ({"threads": 0}, "threads=0 is not possible; give a whole number in [1, 512]"),
        ({"threads": 513}, "threads=513 is not possible; give a whole number in [1, 512]"),
        ({"n_sink": -1}, "n_sink=-1 is not possible; give a whole number in [0, 1048576]"),
        ({"recent": -1}, "recent=-1 is not possible; give a whole number in [0, 1048576]"),
        ({"evict_every": 0}, "evict_every=0 is not possible; give a whole number in [1, 128]"),
        ({"block": 8, "evict_every": 9}, "evict_every=9 is not possible; give a whole number in [1, 8]"),
        ({"gpu_layers": -1}, "gpu_layers=-1 is not possible; give a whole number in [0, 1048576]"),
        ({"budget": 0}, "budget=0 is not possible; give a whole number in [1, 1073741824]"),
        ({"budget": 512.0}, "budget=512.0 is not possible; give a whole number"),
        ({"kv_type": "f32"}, "kv_type='f32' is unknown; possible: f16, q8_0, q4_0"),
        ({"kv_type": "Q8_0"}, "kv_type='Q8_0' is unknown; possible: f16, q8_0, q4_0"),
        ({"kv_type": ["f16"]}, "kv_type=['f16'] is unknown; possible: f16, q8_0, q4_0"),
        ({"thinking": "no"}, "thinking='no' is not possible; give True, False or None"),
        ({"tensor_split": "1,x"}, "tensor_split='1,x' is not possible; give up to 16 numbers from 0 on"),
        ({"rpc_timeout": 0}, "rpc_timeout=0 is not possible; give seconds, more than 0"),
        ({"rpc_timeout": "5"}, "rpc_timeout='5' is not possible; give seconds, more than 0"),
        ({"tensor_split": []}, "tensor_split=[] is not possible"),
        ({"tensor_split": "0,0"}, "tensor_split='0,0' is not possible"),
        ({"tensor_split": "1,-1"}, "tensor_split='1,-1' is not possible"),
        ({"tensor_split": [1] * 17}, "is not possible; give up to 16 numbers"),
        ({"rpc": "10.0.0.1"}, "rpc='10.0.0.1' is no HOST:PORT"),
        ({"rpc": "a:1,a:1", "isolated": True}, "rpc=a:1 is named twice"),
        ({"rpc": "10.0.0.1:5"}, "rpc=10.0.0.1:5 needs isolated=True"),
        ({"rpc": "10.0.0.1:5", "isolated": True, "mmap": True}, "mmap=True with rpc would hold what is sent"),
        ({"device_memory": "A=1GiB,B"}, "device_memory has 'B' where NAME=SIZE is due"),
        ({"device_memory": "A=1GiB,A=2GiB"}, "device_memory names A twice"),
        ({"device_memory": {"A": "much"}}, "size 'much' is not understood"),
        ({"memory": "much"}, "size 'much' is not understood; write bytes, or a number with MiB, GiB, MB or GB"),
        ({"memory": 0}, "size 0 is not a positive whole number"),
        ({"memory": 256}, "memory=256 means 256 bytes, which is too little; write '256MiB'"),
        ({"memory": "100B"}, "memory=100B means 100 bytes, which is too little; write '100MiB'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_values_that_cannot_work(given, message):
    with pytest.raises(ConfigError) as error:
        Options(**given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"block": 1},
        {"block": 4096, "evict_every": 4096},
        {"block": 8, "evict_every": 1},
        {"n_sink": 0, "recent": 0, "budget": 1},
        {"threads": 512},
        {"memory": 1 << 16},
        *({"kv_type": kv_type} for kv_type in KV_TYPES),
    ],
    ids=str,
)
def test_values_at_the_limits(given):
    options = Options(**given)
    assert all(getattr(options, name) == value for name, value in given.items())


def test_a_machine_of_many_processors_gets_the_most_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(768), raising=False)
    assert Options().n_threads == 512


def test_a_policy_is_a_spec_or_an_object():
    assert Options(policy="keydiff(window=0.2)").parsed_policy == KeyDiff(window=0.2)
    assert Options(policy=KeyDiff(window=0.2)).parsed_policy == KeyDiff(window=0.2)
    with pytest.raises(PolicyError, match="possible: keydiff, snapkv"):
        Options(policy="snapkw")


def test_focus_takes_its_queries_from_a_policy_that_reads_some():
    assert Options().parsed_focus.base.name == "snapkv"
    assert Options(focus_policy="tova+caote").parsed_focus.spec == "tova+caote"
    for budget in (None, 64, 256, 257, 1 << 20):
        assert Options(budget=budget).parsed_focus.spec == "snapkv(window=64, kernel=61, aggregate=max)"
    assert Options(policy="h2o").parsed_focus.spec == "h2o"
    assert Options(policy="tova", focus_policy="h2o").parsed_focus.spec == "h2o"
    with pytest.raises(ConfigError, match="focus_policy=l2norm reads no queries"):
        Options(focus_policy="l2norm")
    for probe_tokens in (0, 1025):
        with pytest.raises(ConfigError, match=f"probe_tokens={probe_tokens}"):
            Options(probe_tokens=probe_tokens)
    assert Options(probe_tokens=10).probe_cells == 10
    assert Options(probe_tokens=10, focus=False).probe_cells == 10  # a recall has a probe
    assert Options(probe_tokens=10, focus=False, archive="off").probe_cells == 0


@pytest.mark.parametrize("policy", ["h2o+ada", "ahakv", "h2o+critical"])
def test_scores_that_stay_with_the_cells_are_those_of_one_policy(policy):
    with pytest.raises(ConfigError, match=r"focus_policy=tova with policy=.*; leave focus_policy out"):
        Options(policy=policy, focus_policy="tova")
    assert Options(policy=policy, focus_policy=policy).parsed_focus.spec == policy
    assert Options(policy=policy, focus_policy="tova", focus=False).policies == (parse_policy(policy),)


def test_the_sinks_of_a_wrapped_policy_are_its_own():
    assert Options(policy="sink(n_sink=7)+caote").sinks == 7


# ---- protected cells under the budget ----


@pytest.mark.parametrize(
    ("given", "n_protected", "counted"),
    [
        ({}, 36, "4 sinks, 32 recent"),
        ({"n_sink": 10, "recent": 0}, 10, "10 sinks, 0 recent"),
        ({"policy": Sink(n_sink=7), "recent": 1}, 8, "7 sinks, 1 recent"),
    ],
    ids=str,
)
def test_budget_holds_the_protected_cells_and_one_more(given, n_protected, counted):
    with pytest.raises(BudgetError) as error:
        Options(**given, budget=n_protected)
    message = f"budget={n_protected} does not hold the protected cells: {counted}; raise the budget to at least "
    assert str(error.value) == f"{message}{n_protected + 1} or protect fewer"
    assert Options(**given, budget=n_protected + 1).budget == n_protected + 1


def test_pinned_tokens_count_as_protected():
    options = Options(n_sink=2, recent=3)
    options.check_budget(16, n_pinned=10)
    with pytest.raises(BudgetError, match=r"2 sinks, 3 recent and 11 pinned tokens; raise the budget to at least 17"):
        options.check_budget(16, n_pinned=11)


def test_the_policys_window_counts_as_recent():
    """The larger of the two protects; with a window of half the budget the sinks need the other half."""
    options = Options(policy="keydiff(window=0.5)", recent=8)
    assert [options.recent_cells(budget) for budget in (4, 16, 100)] == [8, 8, 50]
    with pytest.raises(BudgetError, match="4 sinks, 10 recent, and no budget does; protect fewer"):
        Options(policy="keydiff(window=1)", recent=8, budget=10)


def test_a_probe_needs_no_recent_cells_protected_but_who_asks_for_them_gets_them():
    assert [Options().recent_cells(256, probed=probed) for probed in (False, True)] == [32, 0]
    assert [Options(recent=8).recent_cells(256, probed=probed) for probed in (False, True)] == [8, 8]


def test_sinks_of_the_policy_go_first():
    assert Options(policy="sink", n_sink=6).sinks == 6
    assert Options(policy="sink(n_sink=0)", n_sink=6).sinks == 0
    assert Options(policy="keydiff", n_sink=6).sinks == 6


def test_devices_and_their_ceilings():
    options = Options(rpc=["a:1", "b:2"], isolated=True, device_memory={"a:1": "1GiB", "RPC1": 5}, tensor_split="3,1")
    assert [str(server) for server in options.servers] == ["a:1", "b:2"]
    assert options.device_ceilings == (("a:1", 1 << 30), ("RPC1", 5))
    assert options.device_ceiling_bytes is None
    assert options.split == (3.0, 1.0)
    assert not options.maps_weights  # what is sent would lie in the page cache of this process as well
    again = dataclasses.replace(options)
    assert again == options
    assert hash(again) == hash(options)
    assert Options(device_memory="1GiB").device_ceiling_bytes == 1 << 30
    assert Options(device_memory="1GiB").device_ceilings == ()
