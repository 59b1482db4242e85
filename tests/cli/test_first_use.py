"""The first use of a model with few named cells measures its table of heads, once, and never stands in the way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from children import LIMIT_S
from command import COMMAND, SMALL, run_here, words

import edgekv
from edgekv.evals import measured_heads
from edgekv.models.head_shares import path_beside, path_in_cache, read_shares
from edgekv.planning.planner import make_plan

DIVIDED, EVEN = "keydiff(rope=off)+heads+merge", "keydiff(rope=off)"
NEW = "is measured now, once, by reading 1,024 tokens twice"
MEASURED = "measured in "
SAME = "all heads get equally many cells: "


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """A user's folders of this test's own; measuring is on, as it is for users."""
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("EDGEKV_MEASURE_HEADS")


@pytest.fixture(autouse=True)
def measured_here(monkeypatch):
    """Plan and measure in this process: a worker takes longer to start. Returns what measures in a worker."""
    measure = measured_heads.measure

    def measure_here(*given, **named):
        return measure(*given, **named | {"isolated": False})

    monkeypatch.setattr(measured_heads, "measure", measure_here)
    monkeypatch.setattr("edgekv.runtime.plan_for", make_plan)
    return measure


@pytest.fixture
def new(model, tmp_path):
    """A model that was never used."""
    return shutil.copy(model, tmp_path / "new.gguf")


def asked(model, *options, **variables):
    """Return how `edgekv ask` ends, and the policy it names."""
    ended = run_here(
        "ask",
        "--no-focus",
        "-m",
        model,
        *SMALL,
        "--max-tokens",
        2,
        "--json",
        *options,
        "What?",
        stdin=None,
        **variables,
    )
    assert ended.returncode == 0, ended.stderr
    return ended, json.loads(ended.stdout)["policy"]


def tables(tmp_path):
    """Return all files of the cache."""
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_ask_measures_once(new, tmp_path):
    first, policy = asked(new)
    path = path_in_cache(new)
    assert policy == DIVIDED
    lines = [line for line in first.stderr.splitlines() if line]
    assert NEW in lines[0]
    assert lines[0].startswith("new.gguf")
    assert lines[1].startswith(MEASURED)
    assert lines[1].endswith(f" s: {path}")
    table = read_shares(path)
    assert (table.n_texts, table.n_tokens, table.budget, table.model) == (1, 1024, 128, path.stem)
    assert tables(tmp_path) == [path]
    assert not path_beside(new).exists()

    copy = shutil.copy(new, tmp_path / "a copy.gguf")
    for model in (new, copy):
        again, policy = asked(model)
        assert policy == DIVIDED
        assert again.stderr == "".join(f"{line}\n" for line in lines[2:])
    assert tables(tmp_path) == [path]


@pytest.mark.parametrize(
    ("command", "typed"),
    [(["complete", "Once"], None), (["chat"], "Hello\n/policy\n"), (["chat", "--isolated"], "/policy\n")],
    ids=["complete", "chat", "isolated chat"],
)
def test_other_commands_measure_once(new, tmp_path, command, typed):
    options = ["-m", new, *SMALL, "--max-tokens", 2]
    said = []
    for _ in range(2):
        ended = run_here(*command, *options, stdin=typed)
        assert ended.returncode == 0, ended.stderr
        said.append(ended.stderr)
    assert NEW in said[0]
    assert MEASURED in said[0]
    assert not any(line in said[1] for line in (NEW, MEASURED, SAME))
    assert tables(tmp_path) == [path_in_cache(new)]


@pytest.mark.parametrize("options", [["--question", "Who?"], []], ids=["known", "unknown"])
def test_a_text_that_is_read_measures(new, tmp_path, text_file, options):
    ended = run_here("read", "-m", new, *SMALL, "--save", "text", "-f", text_file(words(90)), *options, stdin=None)
    assert ended.returncode == 0, ended.stderr
    assert NEW in ended.stderr
    assert tables(tmp_path) == [path_in_cache(new)]


@pytest.mark.parametrize("n_cells", [1024, 1025])
def test_a_question_that_is_known_measures_where_its_cells_are_divided(new, tmp_path, text_file, n_cells):
    options = ["-m", new, *SMALL, "--budget", n_cells, "--max-tokens", 2, "--json"]
    ended = run_here("ask", *options, "-f", text_file(words(90)), "What?", stdin=None)
    few = n_cells == 1024
    assert json.loads(ended.stdout)["policy"] == (DIVIDED if few else EVEN)
    assert (NEW in ended.stderr) is few
    assert tables(tmp_path) == ([path_in_cache(new)] if few else [])


def test_what_is_measured_is_what_the_command_for_it_measures(new, monkeypatch, measured_here):
    monkeypatch.setattr(measured_heads, "measure", measured_here)  # a worker does it, as for users
    asked(new)
    made = run_here("heads", "-m", new, "--passages", 1, "--threads", 1)
    assert made.returncode == 0, made.stderr
    assert read_shares(path_beside(new)) == read_shares(path_in_cache(new))


@pytest.mark.parametrize("off", ["option", "variable", "settings"])
def test_measuring_is_turned_off(new, tmp_path, monkeypatch, off):
    settings = tmp_path / "settings.toml"
    settings.write_text("measure_heads = false\n" if off == "settings" else "")
    monkeypatch.setenv("EDGEKV_CONFIG", str(settings))
    options = ["--no-measure-heads"] if off == "option" else []
    variables = {"EDGEKV_MEASURE_HEADS": "0"} if off == "variable" else {}
    ended, policy = asked(new, *options, **variables)
    assert policy == EVEN
    assert not ended.stderr
    assert tables(tmp_path) == []


@pytest.mark.parametrize(
    "options", [["--policy", EVEN], ["--policy", "tova"], ["--budget", "1025"]], ids=["same", "other", "cells"]
)
def test_nothing_is_measured_where_no_table_would_be_used(new, tmp_path, options):
    ended, policy = asked(new, *options)
    assert policy in (EVEN, "tova")
    assert not ended.stderr
    assert tables(tmp_path) == []


def test_nothing_is_measured_for_the_default_model(default_model, tmp_path):
    ended = run_here("ask", "--memory", "1GiB", "--budget", 64, "--max-tokens", 1, "--json", "Hi", stdin=None)
    assert json.loads(ended.stdout)["policy"] == DIVIDED
    assert not ended.stderr
    assert tables(tmp_path) == []


def test_a_plan_measures_nothing(new, tmp_path):
    assert "measures one, once" in run_here("plan", new, "--memory", "4GiB", "--budget", 64).stdout
    assert tables(tmp_path) == []


@pytest.mark.parametrize("content", ["", "{}", "foreign"])
def test_a_table_in_the_cache_that_cannot_be_used_is_measured_again(new, tmp_path, content):
    asked(new)
    path = path_in_cache(new)
    sound = path.read_text()
    path.write_text(sound.replace(path.stem, "0" * 32) if content == "foreign" else content)
    ended, policy = asked(new)
    assert policy == DIVIDED
    assert MEASURED in ended.stderr
    assert path.read_text() == sound


def test_a_damaged_table_beside_the_model_is_an_error(new, tmp_path):
    path_beside(new).write_text("{}")
    ended = run_here("ask", "--no-focus", "-m", new, *SMALL, "What?", stdin=None)
    assert ended.returncode == 2
    assert "is no table of head shares" in ended.stderr
    assert NEW not in ended.stderr
    assert tables(tmp_path) == []


def test_a_cache_that_cannot_be_written_leaves_cells_even(new, tmp_path):
    (tmp_path / "cache").write_text("a file")
    ended, policy = asked(new)
    assert policy == EVEN
    assert f"{SAME}the table '{tmp_path}/cache/edgekv/heads/" in ended.stderr
    assert "cannot be written" in ended.stderr


def test_a_model_that_cannot_be_measured_has_even_cells(tiny_model, tmp_path):
    """The text does not fit its trained context."""
    ended, policy = asked(tiny_model(n_layer=2, n_ctx_train=512))
    assert policy == EVEN
    assert ended.stderr.count(SAME) == 1
    assert MEASURED not in ended.stderr
    assert tables(tmp_path) == []


def test_a_ceiling_that_is_too_small_leaves_cells_even(new, tmp_path, monkeypatch):
    """The worker has the ceiling of the command, and its threads."""
    given = {}

    def refused(_, **options):
        given.update(options)
        raise edgekv.CeilingError("memory=4.0 GiB is too little", required_bytes=2, ceiling_bytes=1)

    monkeypatch.setattr(measured_heads, "measure", refused)
    ended, policy = asked(new, "--no-mmap")
    assert policy == EVEN
    assert [given[name] for name in ("memory", "threads", "mmap", "isolated")] == ["4GiB", 1, False, True]
    assert f"{SAME}--memory 4.0 GiB is too little" in ended.stderr
    assert tables(tmp_path) == []


def test_a_command_that_fails_anyhow_measures_nothing(new, tmp_path):
    for options, status in ((["--memory", "1MiB"], 3), (["--budget", "1"], 2), (["-m", tmp_path / "no.gguf"], 4)):
        ended = run_here("ask", "--no-focus", "-m", new, *SMALL, *options, "What?", stdin=None)
        assert ended.returncode == status, ended.stderr
        assert NEW not in ended.stderr
    assert tables(tmp_path) == []


def test_ctrl_c_while_it_is_measured_ends_the_command_and_leaves_nothing(new, tmp_path, monkeypatch, measured_here):
    monkeypatch.setattr(measured_heads, "measure", measured_here)  # a worker does it, as for users
    shown = []

    @contextlib.contextmanager
    def bar():
        def interrupt(progress):
            shown.append(progress)
            os.kill(os.getpid(), signal.SIGINT)

        yield interrupt

    monkeypatch.setattr("edgekv.cli.measure_heads.reading_bar", bar)
    ended = run_here("ask", "--no-focus", "-m", new, *SMALL, "What?", stdin=None)
    assert ended.returncode == 130
    assert not ended.stdout
    assert shown
    assert MEASURED not in ended.stderr
    assert tables(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="of folders that XDG names")
def test_two_processes_that_measure_at_once_do_no_harm(new, tmp_path):
    command = [*COMMAND, "ask", "--no-focus", "-m", new, *SMALL, "--max-tokens", 2, "--json", "What?"]
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*map(str, command)], **options) for _ in range(2)]
    for process in both:
        said, complained = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, complained
        assert json.loads(said)["policy"] == DIVIDED
    assert tables(tmp_path) == [path_in_cache(new)]
    read_shares(path_in_cache(new))


def test_heads_writes_into_the_cache_where_the_models_folder_takes_no_file(new, tmp_path, monkeypatch):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) != str(tmp_path) and real(path, mode))
    few = ["--passages", 1, "--tokens", 200, "--cells", 64, "--threads", 1]
    made = run_here("heads", "-m", new, *few)
    assert made.returncode == 0, made.stderr
    assert tables(tmp_path) == [path_in_cache(new)]
    assert not path_beside(new).exists()
    refused = run_here("heads", "-m", new, *few, "--out", tmp_path / "out.json")
    assert refused.returncode == 2
    assert "cannot be written; name a file in another folder" in refused.stderr


def test_programs_measure_when_they_ask_for_it(new, tmp_path):
    named = {"memory": "4GiB", "threads": 1}
    with edgekv.Runtime(new, budget=64, **named) as runtime:
        assert runtime.plan.policy == EVEN
    assert tables(tmp_path) == []
    shown = []
    assert edgekv.measure_heads(new, **named, progress=shown.append) == path_in_cache(new)
    assert shown[-1].tokens_total == 1024
    assert edgekv.measure_heads(new, **named) is None
    with edgekv.Runtime(new, budget=64, **named) as runtime:
        assert runtime.plan.policy == DIVIDED


def test_words_of_a_long_text_are_kept_by_the_measured_table(new, tmp_path, text_file):
    """Heads get different numbers of cells."""
    book = text_file(words(200))
    asked(new)
    ended = run_here(
        "ask", "--no-focus", "-m", new, *SMALL, "--max-tokens", 2, "--json", "-f", book, "What?", stdin=None
    )
    budgets = json.loads(ended.stdout)["budgets"]
    assert len({cells for layer in budgets for cells in layer}) > 1
