"""`edgekv bench` on a tiny model, in this process; what it measures runs in processes of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import fields

import pytest
from command import words

from edgekv.errors import WorkerError
from edgekv.evals import products, speed
from edgekv.evals.products import ProductSpeed
from edgekv.evals.speed import PEERS
from edgekv.evals.speed_run import FIGURES

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")

QUICK = ["--length", "100", "--budget", "64", "--block", "32", "--policy", "keydiff", "--generate", "3"]


@pytest.fixture
def bench(monkeypatch, capsys, tiny_model):
    """A function from arguments to the exit status, what is printed, and what is printed on stderr."""
    from edgekv.cli.main import main

    def run(*arguments):
        command = ["edgekv", "bench", "-m", str(tiny_model()), "--threads", "1", *QUICK, *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.setenv("COLUMNS", "80")
        status = main()
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def measured(monkeypatch):
    """Figures without a measurement; returns the cases. The fifth one is interrupted."""
    calls = []

    def measure(case, text):
        calls.append(case)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return {"prompt_tokens": 100} | dict.fromkeys(FIGURES, 2e6 * len(calls))

    monkeypatch.setattr(speed, "measure", measure)
    return calls


def test_json_is_one_object_with_every_case(bench):
    status, output, errors = bench("--json", "--repeats", "1")
    assert (status, errors) == (0, "")
    report = json.loads(output)
    assert report.keys() == {"machine", "repeats", "cases", "left_out", "samples", "products"}
    assert (report["repeats"], report["left_out"]) == (1, [])
    assert report["machine"].keys() == {"system", "processors", "memory_bytes"}
    stock, _alike, keydiff = report["cases"]
    assert stock.keys() == keydiff.keys() >= {*FIGURES, "model", "policy", "budget", "block", "kv_type", "n_tokens"}
    assert (keydiff["policy"], keydiff["budget"], keydiff["block"], keydiff["n_generate"]) == ("keydiff", 64, 32, 3)
    for name, ratio in keydiff["of_stock"].items():
        assert ratio["median"] == keydiff[name]["median"] / stock[name]["median"]
    assert [sample["policy"] for sample in report["samples"]] == ["stock", "alike", "keydiff"]
    (product,) = report["products"]
    assert product.keys() == {*(field.name for field in fields(ProductSpeed)), "share_of_limit"}
    assert (product["block"], product["weights"]) == (32, 1.0)


def test_products_are_shown_beside_their_limit(bench, measured, monkeypatch):
    speeds = [
        ProductSpeed(
            type=name,
            weights=weights,
            depth=576,
            n_rows=1536,
            block=32,
            operations_per_s=120e9,
            limit_per_s=limit,
            instructions=instructions,
        )
        for name, weights, limit, instructions in [("Q4_1", 0.9, 200e9, "avx512vnni"), ("F16", 0.1, None, None)]
    ]
    monkeypatch.setattr(products, "product_speeds", lambda model, block: speeds)
    _, output, _ = bench("--repeats", "1")
    rows = [line.split() for line in output.splitlines()[-4:]]
    assert rows[0] == ["type", "weights", "matrix", "block", "reached", "limit", "share", "by"]
    assert rows[1] == ["Q4_1", "90%", "576", "x", "1,536", "32", "120.0", "200.0", "0.60", "avx512vnni"]
    assert rows[2] == ["F16", "10%", "576", "x", "1,536", "32", "120.0", "ggml"]


def test_interrupted_it_prints_what_was_measured(bench, measured):
    status, output, _ = bench("--repeats", "2")
    assert status == 130
    assert [case.policy for case in measured] == ["stock", "alike", "keydiff", "alike", "keydiff"]
    lines = output.splitlines()
    assert lines[0] == "100 tokens, block 32"
    place = lines.index("keydiff, 64")
    assert lines[place + 1].split()[0] == "6000000.00"  # the first repeat; the second one was interrupted
    ratios = [line.partition("  x")[2].split() for line in lines if line.startswith("  of llama.cpp")]
    assert ratios == [["3.00", *["x3.00"] * 3], ["1.50", *["x1.50"] * 3]]


def test_what_is_left_out_is_said(bench, measured):
    _, output, _ = bench("--length", "600", "--repeats", "1")
    for name in PEERS.values():
        assert f"left out: {name} with 600 tokens, block 32: 603 tokens are more than the 512" in output
    measured = [(case.policy, case.n_tokens) for case in measured]
    assert measured == [("stock", 100), ("alike", 100), ("keydiff", 100), ("keydiff", 600)]


def test_nothing_measured_at_all_is_a_failure(bench, monkeypatch):
    def fail(case, text):
        raise WorkerError("killed")

    monkeypatch.setattr(speed, "measure", fail)
    status, output, _ = bench()
    assert status == 1
    assert output.splitlines() == [
        *(f"left out: {name} with 100 tokens, block 32: killed" for name in PEERS.values()),
        "left out: keydiff, 64 with 100 tokens, block 32: killed",
    ]


def test_pictures_that_have_no_folder_are_refused_before_anything_is_measured(bench, measured, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    status, output, errors = bench("--pictures", tmp_path / "file")
    assert (status, output, measured) == (1, "", [])
    assert "file': File exists; check the path" in errors


@pytest.mark.nightly
def test_a_book_and_pictures(bench, measured, tmp_path):
    pytest.importorskip("matplotlib")
    book = tmp_path / "book.txt"
    book.write_text(words(100))
    status, output, errors = bench("--book", book, "--repeats", "1", "--pictures", tmp_path / "pictures", "--json")
    assert status == 0
    assert json.loads(output)["cases"]
    assert errors.count(".png") == len(list((tmp_path / "pictures").glob("*.png"))) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats 0 is not possible"),
        (["--generate", "0"], "--generate 0 is not possible"),
        (["--policy", "keydif"], "policy 'keydif' is unknown"),
        (["--budget", "10"], "--budget 10 does not hold the protected cells"),
        (["--kv-type", "f99"], "--kv-type 'f99' is unknown"),
        (["--book", "absent.txt"], "absent.txt cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_is(bench, measured, arguments, message):
    status, output, errors = bench(*arguments)
    assert (status, output, measured) == (2, "", [])
    assert errors.startswith(f"edgekv: {message}")
