"""The first command of README, on a terminal as users run it: it answers right, and stays under its ceiling."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import COMMAND, run_program

from edgekv.options import default_threads

ROOT = Path(__file__).parents[2]
FACT = "yellow brick"
LIMIT_S = 600


def demo(command):
    """The arguments of README's first use of a command."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.strip().startswith(f"uv run edgekv {command} "))
    return shlex.split(line)[3:]


def on_a_terminal(arguments):
    """Run a command with a terminal for everything; returns its status and what it printed. It never outlives this."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    deadline, printed = time.monotonic() + LIMIT_S, b""
    try:
        while select.select([main], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                piece = os.read(main, 4096)
            except OSError:  # Linux reports the closed other end as an error
                break
            if not piece:
                break
            printed += piece
        return process.wait(timeout=max(1, deadline - time.monotonic())), printed.decode(errors="replace")
    finally:
        process.kill()
        process.wait(LIMIT_S)
        os.close(main)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.usefixtures("default_model")
def test_readmes_question_about_the_end_of_its_text_is_answered_right(tmp_path):
    """Of a quarter of the text, which takes a quarter of the time, as large a part is evicted as of the whole."""
    arguments = demo("ask")
    at = arguments.index("-f") + 1
    lines = (ROOT / arguments[at]).read_text(encoding="utf-8").splitlines(keepends=True)
    arguments[at] = str(tmp_path / "end.txt")
    Path(arguments[at]).write_text("".join(lines[-48:]), encoding="utf-8")
    status, printed = on_a_terminal([*arguments, "--threads", "1", "--budget", "256"])
    assert status == 0, printed
    assert FACT in printed.replace("\r\n", " ").lower()
    assert re.search(r"remembers 946 of 946 tokens, \d+ of them archived", printed)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.usefixtures("default_model")
def test_readmes_first_command_answers_right(threads):
    if threads > 2 and threads > default_threads():
        pytest.skip(f"{threads} threads on {default_threads()} processors wait for one another for minutes")
    status, printed = on_a_terminal([*demo("ask"), "--threads", str(threads)])
    assert status == 0, printed
    assert FACT in printed.replace("\r\n", " ").lower()


@pytest.mark.nightly
@pytest.mark.usefixtures("default_model")
def test_the_full_cache_of_its_text_does_not_fit_there():
    """Not even with the smallest block, in a type that is chosen, as README says."""
    arguments = demo("ask")
    memory = arguments[arguments.index("--memory") + 1]
    text = ROOT / arguments[arguments.index("-f") + 1]
    assert text.stat().st_size < 200_000
    assert FACT not in arguments[-1]
    plan = json.loads(run_program("plan", "--memory", memory, "--json").stdout)
    n_tokens = 4_000  # the text has a few more
    others = [other for other in plan["alternatives"] if other["kv_type"] != "q4_0"]  # q4_0 has to be named
    assert max(other["budget_cells"] + other["block"] for other in (plan, *others)) < n_tokens
