"""In a terminal too the process stays under its ceiling: by what the kernel counted when it had ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from diagonals import by_night
from repeated import settled

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux counts")

LAUNCHER = Path(__file__).with_name("launcher.py")
MAIN = "import sys; from edgekv.cli.main import main; sys.exit(main())"
LATE = """
import sys
from edgekv.conversations import local_engine
from edgekv.cli.main import main

def note(event, arguments):
    if event == "edgekv.runtime":
        planned.append(True)
    elif event == "import" and planned:
        late.append(arguments[0])

planned, late = [], []
sys.addaudithook(note)
status = main()
print("imported late:", *late)
sys.exit(status)
"""
MIB = 1 << 20


# all that a chat can do; the answer is long enough to be drawn more than once
TYPED = "/read {text}\nWho?\n/kept\n/stats\n/policy\n/set temp 0.5\n/retry\n/copy\n/thoughts\n/undo\nWhy?\n/save one\n"
TYPED += "/session two\nAnd?\n/session\n/load one\n/system Be brief.\nWhy?\n/help\n/nothing\n/exit\n"


def run(where, *arguments, program=MAIN, typed="", **variables):
    """Run `edgekv ARGUMENTS` in a "terminal" or with "pipes", with no byte code written; what the launcher says."""
    command = [sys.executable, "-I", "-S", LAUNCHER, where, "300", sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    ended = subprocess.run(command, input=typed.encode(), stdout=subprocess.PIPE, env=environment, check=True)
    return json.loads(ended.stdout)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The old house by the river was red. " * 20)
    return str(path)


PLACES = [("terminal", 200, False), ("pipes", 200, True), ("terminal", 256, True)]


@pytest.mark.parametrize(("where", "ceiling", "compiled"), by_night(PLACES, PLACES[:1]))
def test_ask_stays_under_its_ceiling(default_model, text, tmp_path, where, ceiling, compiled):
    """All that a process may do more stands together in the first: a terminal, code that is compiled, little room."""
    code = {} if compiled else {"PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}
    arguments = ("-m", default_model, "--memory", f"{ceiling}MiB", "--threads", "1", "--max-tokens", "4", "-f", text)
    ended = run(where, "ask", *map(str, arguments), "Who?", **code)
    assert ended["status"] == 0, ended["output"]
    assert ended["peak_bytes"] <= ceiling * MIB


def chat(default_model, folder, ceiling, typed, *options, **variables):
    """Chat in a terminal under a ceiling in MiB; what the launcher says of a chat that went well."""
    options = ("-m", str(default_model), "--memory", f"{ceiling}MiB", *options)
    ended = run("terminal", "chat", *options, typed=typed, XDG_DATA_HOME=str(folder / "data"), **variables)
    assert ended["status"] == 0, ended["output"]
    assert "above memory=" not in ended["output"]
    return ended


@pytest.mark.parametrize(
    ("ceiling", "term"), by_night([(200, "xterm"), (244, "xterm"), (244, "dumb")], [(200, "xterm"), (244, "xterm")])
)
def test_chat_stays_under_its_ceiling(default_model, text, tmp_path, ceiling, term):
    """With the line editor and Markdown under the higher ceiling, well above where they begin to fit, and without else.

    Every command is typed where most is drawn.

    Code is compiled where there is most of it, which takes seconds.
    """
    is_drawn = (ceiling, term) == (244, "xterm")
    code = {"PYTHONPYCACHEPREFIX": str(tmp_path / "cache")} if is_drawn else {}
    options = ("--threads", "1", "--max-tokens", "12")
    typed = TYPED if is_drawn else "/read {text}\nWho?\n/kept\n/undo\n/exit\n"
    ended = chat(default_model, tmp_path, ceiling, typed.format(text=text), *options, TERM=term, **code)
    assert ended["peak_bytes"] <= ceiling * MIB
    assert ("[?7l" in ended["output"]) == is_drawn  # the editor wraps its lines itself
    assert ("plain: the ceiling has no" in ended["output"]) == ((ceiling, term) == (200, "xterm"))


@pytest.mark.nightly  # three minutes
def test_a_long_chat_stays_under_its_ceiling(default_model, tmp_path):
    """A chat reserves what its lines and commands take in an hour of use."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"House {i} by the river was {i % 97} years old, and it was red. " for i in range(220)))
    typed = f"/read {text}\nWho?\n/kept\n/stats\nWhy?\nAnd?\n/undo\n" * 10
    options = ("--threads", "2", "--max-tokens", "30", "--session", "a")
    ended = chat(default_model, tmp_path, 200, f"{typed}/exit\n", *options, TERM="dumb")
    assert ended["peak_bytes"] <= 198 * MIB  # some of the reserve is left


@pytest.mark.nightly
def test_inspect_stays_under_its_ceiling(default_model, text):
    options = ("-m", str(default_model), "--memory", "200MiB", "--threads", "1")
    ended = run("terminal", "inspect", *options, "-f", text)
    assert ended["status"] == 0, ended["output"]
    assert "above memory=" not in ended["output"]
    assert ended["peak_bytes"] <= 200 * MIB


@pytest.mark.nightly
def test_inspect_takes_little_more_for_a_long_text(tiny_model, tmp_path):
    """Not the keys of all tokens, in double precision and some times over: 3 KiB a token, 20 MiB."""
    model = tiny_model(n_layer=2, head_dim=64, n_ctx_train=1 << 14)
    options = ("-m", str(model), "--memory", "1GiB", "--budget", "64", "--block", "128", "--threads", "1", "--json")

    def growth():
        peaks = []
        for n in (100, 7000):
            path = tmp_path / f"{n}.txt"
            path.write_text("a b c d e f g " * (n // 7))
            ended = run("pipes", "inspect", *options, "-f", str(path), TMPDIR=str(tmp_path))
            assert ended["status"] == 0, ended["output"]
            report = json.loads(ended["output"])
            assert len(report["pieces"]) > n
            assert [len(study["points"]) for study in report["keys"]] == [len(report["pieces"])] * 2
            peaks.append(ended["peak_bytes"])
        return peaks[1] - peaks[0]

    assert settled(growth, 12 * MIB) < 12 * MIB


@pytest.mark.parametrize(
    ("command", "term"),
    [
        ("ask", "xterm"),
        ("chat", "xterm"),
        pytest.param("chat", "dumb", marks=pytest.mark.nightly),
        pytest.param("inspect", "xterm", marks=pytest.mark.nightly),
    ],
)
def test_nothing_is_imported_after_the_plan(tiny_model, text, tmp_path, command, term):
    options = ("-m", str(tiny_model(n_layer=2)), "--memory", "1GiB", "--budget", "64", "--block", "32")
    options += ("--threads", "1", *(() if command == "chat" else ("-f", text, "Who?")))
    places = {"XDG_DATA_HOME": str(tmp_path / "data"), "TERM": term}
    ended = run("terminal", command, *options, program=LATE, typed=TYPED.format(text=text), **places)
    assert ended["status"] == 0, ended["output"]
    assert ended["output"].rpartition("imported late:")[2].split() == [], ended["output"]


def lowest_ceiling(default_model, program=MAIN):
    """The lowest ceiling in MiB that a plan says to be possible."""
    refused = run("pipes", "plan", "-m", str(default_model), "--threads", "1", "--memory", "100MiB", program=program)
    return int(re.search(r"raise the ceiling to (\d+)MiB", " ".join(refused["output"].split()))[1])


def test_ask_stays_under_the_lowest_ceiling(default_model):
    """With room for what the processes of a plan and of an answer differ in, some 200 KiB."""
    ceiling = lowest_ceiling(default_model) + 4
    arguments = ("-m", str(default_model), "--threads", "1", "--memory", f"{ceiling}MiB", "--max-tokens", "2", "Who?")
    ended = run("pipes", "ask", *arguments)
    assert ended["status"] == 0, ended["output"]
    assert ended["peak_bytes"] <= ceiling * MIB


MEASURES_ALIKE = f"""
from edgekv.planning import estimate
estimate.measured = lambda: estimate.Measured(100 << 20, 1 << 20, 1 << 20)
{MAIN}
"""


def test_plan_says_what_ask_does(default_model):
    """One plan, whichever command makes it, in processes that measure the same, at the edge of what is possible."""
    options = ("-m", str(default_model), "--threads", "1", "--json")

    def planned(mib):
        return run("pipes", "plan", *options, "--memory", f"{mib}MiB", program=MEASURES_ALIKE)

    lowest = lowest_ceiling(default_model, MEASURES_ALIKE)
    assert planned(lowest - 1)["status"] == 3
    ceiling = lowest
    arguments = (*options, "--memory", f"{ceiling}MiB", "--max-tokens", "2", "Who?")
    asked = run("pipes", "ask", *arguments, program=MEASURES_ALIKE)
    assert asked["peak_bytes"] <= ceiling * MIB
    # a line before it says how much is read from the file, at the edge
    plan, done = (json.loads(one["output"].splitlines()[-1]) for one in (planned(ceiling), asked))
    assert [done[name] for name in ("budget_cells", "kv_type", "block")] == [
        plan[name] for name in ("budget_cells", "kv_type", "block")
    ]
    assert done["memory"]["planned_peak_bytes"] == plan["planned_peak_bytes"]
