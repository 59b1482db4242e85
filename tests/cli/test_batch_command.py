"""`edgekv batch`: the same results, whatever stopped it, and whoever shared the work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from children import LIMIT_S, started
from command import run_here, run_program
from held_lines import RELEASED, holding

pytest.importorskip("starlette")

SMALL = ["--memory", "4GiB", "--budget", "64", "--block", "32", "--threads", "1"]
MAIN = "from edgekv.cli.main import main; raise SystemExit(main())"


def request(custom_id, content, **body):
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 1.5} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


DOCUMENTS = [" ".join(f"w{i}x{j % 97}" for j in range(60)) for i in range(4)]
REQUESTS = [request(f"{i}-{j}", f"{DOCUMENTS[i]} Question {j}?") for j in range(6) for i in range(4)]


@pytest.fixture
def command(tiny_model, tmp_path):
    """A function to the command line that answers requests into results.jsonl, in tmp_path."""
    model = str(tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64))

    def command(*arguments, requests=REQUESTS, results="results.jsonl", program=MAIN):
        if requests is not None:
            lines = "".join(json.dumps(each) + "\n" for each in requests)
            (tmp_path / "requests.jsonl").write_text(lines)
        line = [sys.executable, "-c", program, "batch", "requests.jsonl", "-o", results]
        return [*line, "--model", model, *SMALL, *arguments]

    return command


@pytest.fixture
def run(command, tmp_path):
    def run(*arguments, status=0, requests=REQUESTS, results="results.jsonl", **variables):
        line = command(*arguments, requests=requests, results=results)[3:]  # what follows the program
        run_it = run_program if variables else run_here  # some are read when a library is imported
        done = run_it(*line, folder=tmp_path, **variables)
        assert done.returncode == status, done.stderr
        return done

    return run


@pytest.fixture
def rows(tmp_path):
    """The results by custom_id, each of which must be there once; without their times."""

    def rows(name="results.jsonl"):
        found = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for row in found:
            row["response"]["body"].pop("created", None)
        assert len({row["custom_id"] for row in found}) == len(found)
        return {row["custom_id"]: row for row in found}

    return rows


def wait_for_lines(path, child, n):
    while child.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < n):
        time.sleep(0.005)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_batch_goes_on_where_it_was(command, run, rows, tmp_path):
    run(results="whole.jsonl")
    path = tmp_path / "results.jsonl"
    with started(command(program=holding(MAIN, 20)), cwd=tmp_path, stderr=subprocess.DEVNULL) as child:
        wait_for_lines(path, child, 3)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(LIMIT_S)
    whole = path.read_bytes()
    kept = whole[: whole.rindex(b"\n") + 1]
    assert 3 <= kept.count(b"\n") < len(REQUESTS)
    said = run().stderr
    assert path.read_bytes().startswith(kept)
    assert "results of 24 of 24 requests are in results.jsonl" in said
    assert rows() == rows("whole.jsonl")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_ctrl_c_says_how_to_go_on(command, run, rows, tmp_path, workers):
    path = tmp_path / "results.jsonl"
    line = command("--workers", workers, program=holding(MAIN, 20))
    with started(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
        wait_for_lines(path, child, 3)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
        assert child.wait(LIMIT_S) == 130
    assert "of 24 requests are in results.jsonl; the same command goes on from there" in said
    assert "Traceback" not in said
    n_before = len(rows())
    assert 2 <= n_before < 24  # the third line was seen, but may not have been on the disk yet
    assert f"{24 - n_before} answered now" in run("--workers", workers).stderr
    assert len(rows()) == 24


@pytest.mark.nightly  # a cluster starts many processes; test_workers.py and test_batch.py test workers every time
def test_two_workers_of_dask_give_what_one_process_gives(run, rows):
    distributed = pytest.importorskip("distributed")
    run(results="alone.jsonl")
    with distributed.LocalCluster(2, threads_per_worker=2, dashboard_address=None) as cluster:
        figures = json.loads(run("--cluster", cluster.scheduler_address, "--json").stdout)
    assert rows() == rows("alone.jsonl")
    assert figures["results"] == figures["answered"] == 24
    assert 4 <= figures["prefixes"] <= 8


@pytest.mark.nightly
def test_a_cluster_whose_worker_dies_answers_all_the_same(command, rows, run, tmp_path):
    distributed = pytest.importorskip("distributed")
    run(results="alone.jsonl")
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        line = command("--cluster", cluster.scheduler_address, program=holding(MAIN, 4))
        with started(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
            wait_for_lines(tmp_path / "results.jsonl", child, 4)
            with distributed.Client(cluster) as client:
                pids = client.run(os.getpid)
            os.kill(next(iter(pids.values())), signal.SIGKILL)
            assert len(rows()) < len(REQUESTS)
            (tmp_path / RELEASED).touch()
            said = child.stderr.read()
            assert child.wait(LIMIT_S) == 0, said
    assert rows() == rows("alone.jsonl")


def test_failures_are_counted(run, rows):
    said = run(requests=[*REQUESTS[:2], request("wrong", "Hello", temperature=-1)], status=1).stderr
    assert "results of 3 of 3 requests are in results.jsonl, 1 of them an error" in said
    assert rows()["wrong"]["response"]["status_code"] == 400
    figures = json.loads(run("--json", requests=None, status=1).stdout)
    assert (figures["requests"], figures["results"], figures["failed"], figures["answered"]) == (3, 3, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--workers", "2", "--cluster", "tcp://x:1"], 2, "two ways to share the work; give one"),
        (["--cluster", "tcp://127.0.0.1:9"], 2, "no Dask scheduler answers at --cluster tcp://127.0.0.1:9"),
        (["-o", "requests.jsonl"], 2, "requests.jsonl is the file of requests"),
        (["-o", "."], 2, ". is a folder; name a file"),
        (["--memory", "20MiB"], 3, "--memory 20.0 MiB"),
        (["--budget", "0"], 2, "--budget 0 is not possible"),
        (["--model", "nobody"], 4, "nobody"),
        (["--isolated"], 2, "No such option"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_answered(run, tmp_path, arguments, status, message):
    asks = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"} if "tcp://127.0.0.1:9" in arguments else {}
    assert message in run(*arguments, status=status, **asks).stderr
    if "--cluster" not in arguments:
        assert not (tmp_path / "results.jsonl").exists() or (tmp_path / "results.jsonl").read_bytes() == b""


def test_other_requests_for_the_same_results_are_refused(run):
    run(requests=REQUESTS[:2])
    said = run(requests=REQUESTS[1:3], status=2).stderr
    assert "results.jsonl has answers to another file than requests.jsonl" in said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no such device")
def test_a_device_is_no_file_of_results(run):
    assert "/dev/full is no plain file" in run(results="/dev/full", status=2).stderr


def test_the_extra_is_named_where_it_is_missing(command, tmp_path):
    hidden = "import sys; sys.modules['pydantic'] = None; "
    line = command()
    done = subprocess.run([*line[:2], hidden + line[2], *line[3:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert 'needs pydantic, which is not installed; pip install "llguidance' in done.stderr
