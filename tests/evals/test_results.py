"""Results on disk survive what processes do to them."""

import json
import os
import signal
import subprocess
import sys

import pytest
from children import started

import edgekv
from edgekv.evals.results import Results, key_of

CONFIG = {"task": "needle", "budget": 512, "seed": 3}


def test_what_was_added_is_found_again(tmp_path):
    with Results(tmp_path / "new" / "results.jsonl") as results:
        results.add(CONFIG, {"score": 1.0})
    with Results(tmp_path / "new" / "results.jsonl") as results:
        assert results.get(CONFIG) == {"score": 1.0}
        assert results.get(CONFIG | {"seed": 4}) is None


def test_the_order_of_a_configuration_does_not_matter():
    assert key_of(CONFIG) == key_of(dict(reversed(CONFIG.items())))


def test_a_cut_line_is_dropped_and_nothing_else(tmp_path):
    path = tmp_path / "results.jsonl"
    with Results(path) as results:
        results.add(CONFIG, {"score": 1.0})
        results.add(CONFIG | {"seed": 4}, {"score": 0.0})
    path.write_bytes(path.read_bytes()[:-5])
    with Results(path) as results:
        assert results.get(CONFIG) == {"score": 1.0}
        assert results.get(CONFIG | {"seed": 4}) is None
        results.add(CONFIG | {"seed": 4}, {"score": 0.5})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["result"]["score"] for row in rows] == [1.0, 0.5]


def test_a_foreign_file_is_refused_and_stays_as_it_is(tmp_path):
    path = tmp_path / "shopping.txt"
    path.write_text("milk\n")
    with pytest.raises(edgekv.InputError, match=r"line 1 of .*shopping.txt"):
        Results(path)
    assert path.read_text() == "milk\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
def test_a_file_is_for_one_process_at_a_time(tmp_path):
    path = tmp_path / "results.jsonl"
    with Results(path), pytest.raises(edgekv.ConfigError, match="in use"):
        Results(path)
    with Results(path):
        pass


def test_numbers_that_json_does_not_know_are_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    with Results(path) as results:
        with pytest.raises(ValueError, match="JSON"):
            results.add(CONFIG, {"score": float("nan")})
        assert results.get(CONFIG) is None
    assert path.read_bytes() == b""


ADD_FOREVER = """
import sys
from pathlib import Path
from edgekv.evals.results import Results
with Results(Path(sys.argv[1])) as results:
    for seed in range(10**9):
        results.add({"seed": seed}, {"score": 1.0, "padding": "x" * 5000})
        print(seed, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_kill_loses_nothing_that_was_added(tmp_path):
    path = tmp_path / "results.jsonl"
    with started([sys.executable, "-c", ADD_FOREVER, path], stdout=subprocess.PIPE, text=True) as child:
        for _ in range(20):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        said = [*range(20), *map(int, child.stdout.read().split())]
    with Results(path) as results:
        assert all(results.get({"seed": seed}) for seed in said)
        assert results.get({"seed": len(said) + 1}) is None
