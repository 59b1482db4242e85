"""`edgekv policies`, in this process: what a spec may name, for people and for programs."""

from __future__ import annotations

import json
import sys

import pytest

from edgekv import policies
from edgekv.policies import POLICIES, WRAPPERS, parse_policy

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")


@pytest.fixture
def edgekv(monkeypatch, capsys):
    """A function from arguments to the exit status, what is printed, and what is printed on stderr."""
    from edgekv.cli.main import main

    def run(*arguments, columns=200):
        monkeypatch.setattr(sys, "argv", ["edgekv", *arguments])
        monkeypatch.setenv("COLUMNS", str(columns))
        status = main()
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def listed(edgekv):
    status, output, errors = edgekv("policies", "--json")
    assert (status, errors) == (0, "")
    return {policy["name"]: policy for policy in json.loads(output)}


def test_json_lists_every_policy(listed):
    assert listed.keys() >= POLICIES.keys() | WRAPPERS.keys()
    for name, kind in (POLICIES | WRAPPERS).items():
        policy = listed[name]
        assert policy["kind"] == ("wrapper" if name in WRAPPERS else "base")
        assert (policy["source"], policy["summary"], policy["paper"]) == ("built in", kind.summary, kind.paper)
        told = [field.name for field in kind.options() if not field.metadata["of_paper"]]
        assert [option["name"] for option in policy["options"]] == told


def test_json_options_are_those_that_a_spec_takes(listed):
    """Defaults, spelt out, mean the policy without options; so does every other spelling of a name."""
    for name in (*POLICIES, *WRAPPERS):
        base = "keydiff+" if name in WRAPPERS else ""
        options = listed[name]["options"]
        for key in ("name", "alias"):
            spelt = ", ".join(f"{option[key] or option['name']}={option['default']}" for option in options)
            assert parse_policy(f"{base}{name}({spelt})") == parse_policy(f"{base}{name}")
    (window,) = (option for option in listed["snapkv"]["options"] if option["name"] == "window")
    assert window == {
        "name": "window",
        "default": 32,
        "help": "newest tokens whose queries score",
        "alias": "W",
        "choices": [],
        "minimum": 1,
        "maximum": 4096,
        "odd": False,
    }


def test_table_names_policies_options_and_papers(edgekv):
    status, output, errors = edgekv("policies")
    assert (status, errors) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if "│" in line]
    assert ["keydiff", "", "keep the keys least similar to the mean of all (KeyDiff, arXiv:2504.15364)"] in rows
    assert ["pool", "avg", "how scores are pooled: avg, max"] in rows
    assert ["window or W", "32", "newest tokens whose queries score"] in rows
    assert ["kernel", "1", "cells under the pooling kernel; 1 = no pooling"] in rows
    assert ["floor", "on", "never sharpen less than the model's own scale"] in rows
    assert ["n_sink", "none", "protected first positions; default: the runtime's"] in rows
    names = [row[0] for row in rows]
    assert {f"+{name}" for name in WRAPPERS} | POLICIES.keys() <= set(names)
    assert not WRAPPERS.keys() & set(names)


def test_table_fits_a_narrow_terminal(edgekv):
    _, output, _ = edgekv("policies", columns=80)
    assert max(map(len, output.splitlines())) <= 80
    assert "recent_accumulation" not in output  # only a paper's tables set it
    assert "value_prior" in output


def test_registered_policies_are_listed(edgekv):
    """With what they say of themselves, brackets and all."""
    policies.register("newest", lambda *, positions: positions, summary="keep [red] the newest")
    try:
        _, table, _ = edgekv("policies")
        _, array, _ = edgekv("policies", "--json")
    finally:
        policies.unregister("newest")
    (line,) = (line for line in table.splitlines() if "newest " in line and "[red]" in line)
    assert "keep [red] the newest (registered)" in line
    (policy,) = (policy for policy in json.loads(array) if policy["name"] == "newest")
    assert policy == {
        "name": "newest",
        "kind": "base",
        "source": "registered",
        "summary": "keep [red] the newest",
        "paper": None,
        "options": [],
    }


def test_arguments_are_refused(edgekv):
    status, output, errors = edgekv("policies", "keydiff")
    assert (status, output) == (2, "")
    assert "unexpected extra argument" in errors
