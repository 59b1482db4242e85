"""`edgekv eval`: the same table again, whatever stopped it before, and however the work was shared."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import LIMIT_S, started
from command import run_here
from held_lines import holding

SMALL = ["--budget", "64", "--block", "32", "--recent", "8", "--length", "120", "--threads", "1"]


@pytest.fixture
def run(tiny_model, tmp_path):
    """Runs `edgekv eval TASK ...` over a tiny model in an empty folder, where results lie in edgekv-eval.jsonl."""
    model = str(tiny_model(n_layer=2, n_ctx_train=2048))

    def run(*arguments, status=0, model=model):
        done = run_here("eval", *arguments, "--model", model, folder=tmp_path)
        assert done.returncode == status, done.stderr
        return done

    return run


@pytest.fixture
def rows(tmp_path):
    """The lines of the file of results."""
    return lambda: [json.loads(line) for line in (tmp_path / "edgekv-eval.jsonl").read_text().splitlines()]


NEEDLE = ["needle", "--policy", "full", "--policy", "keydiff", "--policy", "sink", "--samples", "2", *SMALL]


def test_a_second_run_prints_the_same_and_measures_nothing(run, rows):
    first = run(*NEEDLE)
    assert "keydiff" in first.stdout
    assert "95 %" in first.stdout
    assert "6 of 6 cases" in first.stderr
    measured = rows()
    assert run(*NEEDLE).stdout == first.stdout
    assert rows() == measured
    run(*NEEDLE, "--policy", "random")
    assert rows()[: len(measured)] == measured
    assert len(rows()) == 8


def test_brackets_in_names_are_shown_as_they_are(run):
    arguments = ["needle", "--policy", "keydiff", "--samples", "1", *SMALL, "--focus", "what [/b] is"]
    done = run(*arguments, "--focus", "off", "--results", "[draft][/b].jsonl")
    assert "in [draft][/b].jsonl" in done.stderr
    assert "[/b]" in done.stdout


@pytest.mark.nightly
def test_a_killed_run_goes_on_where_it_was(run, rows, tiny_model, tmp_path):
    arguments = [*NEEDLE, "--samples", "12"]
    whole = run(*arguments, "--results", "whole.jsonl").stdout
    model = str(tiny_model(n_layer=2, n_ctx_train=2048))
    program = holding("from edgekv.cli.main import main; main()", 30)
    command = [sys.executable, "-c", program, "eval", *arguments, "--model", model]
    file = tmp_path / "edgekv-eval.jsonl"
    with started(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None and (not file.exists() or file.read_bytes().count(b"\n") < 5):
            time.sleep(0.001)
        child.kill()
        child.wait(LIMIT_S)
    kept = file.read_bytes().splitlines(keepends=True)
    kept = [line for line in kept if line.endswith(b"\n")]
    assert 5 <= len(kept) < 36
    assert run(*arguments).stdout == whole
    assert file.read_bytes().startswith(b"".join(kept))
    configs = [json.dumps(row["config"], sort_keys=True) for row in rows()]
    assert len(configs) == len(set(configs)) == 36


@pytest.mark.nightly  # tests/evals has the shares; a cluster of Dask takes seconds to start
def test_shared_work_gives_the_same_results(run, rows, tmp_path):
    pytest.importorskip("distributed")
    alone = run(*NEEDLE, "--results", "alone.jsonl").stdout
    assert run(*NEEDLE, "--workers", "2").stdout == alone
    assert len(rows()) == 6


@pytest.mark.parametrize("focus", ["off", "question", "turn", "What is blue?"])
def test_json_says_what_was_measured(run, focus):
    found = json.loads(run(*NEEDLE, "--focus", focus, "--needles", "2", "--json").stdout)
    table = found["tables"]["needle"]
    assert [line["policy"] for line in table] == ["full", "keydiff", "sink"]
    assert {line.get("focus", focus) for line in table} == {focus}
    assert all(0 <= line["low"] <= line["mean"] <= line["high"] <= 1 and line["n"] == 2 for line in table)


@pytest.mark.nightly
def test_a_ceiling_adds_speed_and_peak_to_the_table(run):
    asked = ("needle", "--policy", "keydiff", "--samples", "1", *SMALL)
    columns = ("first tenth tok/s", "last / first", "peak MiB", "growth")
    under, plain = run(*asked, "--length", "400", "--memory", "4GiB").stdout, run(*asked).stdout
    assert all(column in under and column not in plain for column in columns)
    found = json.loads(run(*asked, "--length", "400", "--memory", "4GiB", "--json").stdout)["tables"]["needle"]
    assert [line["length"] for line in found] == [120, 400]
    # the kernel counts pages by the dozen, on each processor a thread ran on
    assert all(line["growth"] > -0.01 and line["peak_bytes"] > 0 and line["memory"] == "4GiB" for line in found)
    assert "size 'lots' is not understood" in run(*asked, "--memory", "lots", status=2).stderr


def test_likelihoods_are_in_the_table_and_kept(run, rows):
    asked = (*NEEDLE, "--metric", "answer-nll", "--needles", "2")
    assert "above full" in run(*asked).stdout
    measured = rows()
    assert [len(row["result"]["nlls"]) for row in measured] == [2] * 6
    full, keydiff, _ = json.loads(run(*asked, "--json").stdout)["tables"]["needle"]
    assert rows() == measured
    assert keydiff["nll_above_full"] == pytest.approx(keydiff["nll"] - full["nll"])


def test_questions_of_ones_own_are_asked(run, rows):
    data = str(Path(__file__).parents[2] / "examples" / "questions.jsonl")
    done = run("qa", "--data", data, "--samples", "2", "--policy", "keydiff", "--budget", "64", "--block", "32")
    assert "F1" in done.stdout
    assert [row["config"]["data"].split()[0] for row in rows()] == ["questions.jsonl"] * 2


def test_the_baseline_is_what_others_are_compared_with(run):
    policies = ("--policy", "full", "--policy", "keydiff")
    asked = ("needle", *policies, "--focus", "off", "--focus", "What?", "--samples", "2", *SMALL)
    for baseline, p_values in ((None, [None, 1.0]), ("keydiff", [None, 1.0]), ("focus: What?", [1.0, None])):
        table = run(*asked, "--json", *(() if baseline is None else ("--baseline", baseline))).stdout
        lines = json.loads(table)["tables"]["needle"]
        assert [line["policy"] for line in lines] == ["full", "keydiff", "keydiff"]
        assert [line["p_value"] for line in lines] == [None, *p_values]  # a full cache has no budget to compare at
    wrong = run(*asked, "--baseline", "tova", status=2)
    assert "--baseline 'tova' is not measured; possible: keydiff, focus: What?" in wrong.stderr


def test_every_task_makes_a_table(run, tmp_path):
    own = {
        "needle": 'policies = ["full", "keydiff"]\nbudgets = [64, 96]\nlengths = [120]\ndepth = [0.2, 0.8]',
        "ruler": 'policies = ["keydiff"]\nbudgets = [64]\nlengths = [400]\nkind = ["niah_single_2"]',
        "perplexity": 'policies = ["full", "sink"]\nbudgets = [64]\nlengths = [120]',
    }
    shared = "blocks = [32]\nrecent = 8\nsamples = 1"
    grids = [f'[[grid]]\ntask = "{task}"\n{shared}\n{fields}\n' for task, fields in own.items()]
    (tmp_path / "suite.toml").write_text("\n".join(grids))
    done = run("--suite", "suite.toml", "--threads", "1")
    for name in ("needle", "ruler", "perplexity"):
        assert f"{name}:" in done.stdout


def test_a_setting_that_cannot_be_is_told_and_the_others_are_measured(run, rows):
    done = run("needle", "--policy", "keydiff", "--budget", "12", "--samples", "1", *SMALL)
    assert "refused: --budget 12 does not hold the protected cells" in done.stdout
    assert [("refused" in row["result"]) for row in rows()] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to measure; name a task"),
        (["--suite", "slow"], "suite 'slow' is unknown; possible: full, quick"),
        (["--suite", "none.toml"], "none.toml cannot be read"),
        (["--suite", "bad.toml"], "bad.toml is not TOML"),
        (["--suite", "empty.toml"], "empty.toml has no [[grid]]"),
        (["--suite", "single.toml"], "single.toml has no [[grid]]"),
        (["--suite", "listed.toml"], "--samples [1, 2] in a grid of the suite has several values; give one"),
        (["--suite", "words.toml"], "--samples 'two' is not possible; give at least 1"),
        (["--suite", "odd.toml"], "task 'riddle' is unknown; possible: needle"),
        (["needle", "--samples", "0"], "--samples 0 is not possible"),
        (["needle", "--policy", "full", "--policy", "nope"], "policy 'nope' is unknown; possible: keydiff"),
        (["needle", "--policy", "keydiff(size=3)"], "no option"),
        (["needle", "--focus-policy", "nope"], "policy 'nope' is unknown"),
        (["needle", "--kv-type", "f99"], "--kv-type 'f99' is unknown; possible: f16"),
        (["needle", "--reposition", "now"], "--reposition 'now' is unknown; possible: auto"),
        (["needle", "--book", "none.txt"], "none.txt"),
        (["qa"], "Missing option '--data'"),
        (["qa", "--data", "none.jsonl"], "none.jsonl cannot be read"),
        (["needle", "--metric", "warmth"], "--metric 'warmth' is unknown; possible: answer-nll"),
        (["needle", "--workers", "1", "--cluster", "tcp://x:1"], "two ways to share the work"),
    ],
)
def test_mistakes_are_told(run, tmp_path, arguments, message):
    (tmp_path / "bad.toml").write_text("[[grid")
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "single.toml").write_text('[grid]\ntask = "needle"')
    (tmp_path / "listed.toml").write_text('[[grid]]\ntask = "needle"\nsamples = [1, 2]')
    (tmp_path / "words.toml").write_text('[[grid]]\ntask = "needle"\nsamples = "two"')
    (tmp_path / "odd.toml").write_text('[[grid]]\ntask = "riddle"')
    done = run(*arguments, status=2)
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    results = tmp_path / "edgekv-eval.jsonl"
    assert not results.exists() or results.read_bytes() == b""


def test_fewer_texts_than_a_suite_has(run, rows, tmp_path):
    suite = '[[grid]]\ntask = "perplexity"\npolicies = ["sink"]\nbudgets = [24]\nblocks = [16]\nlengths = [60]\n'
    (tmp_path / "own.toml").write_text(suite + "n_sink = 0\nrecent = 0\nevict_every = 1\nsamples = 3\n")
    assert "results of 1 of 1 case are in" in run("--suite", "own.toml", "--texts", "1").stderr
    (row,) = rows()
    assert row["config"]["evict_every"] == 1
    assert row["result"]["n_evictions"] == 58 - 24  # every token after those that fit, and but for the last
