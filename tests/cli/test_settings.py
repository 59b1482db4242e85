"""Options from a settings file, presets, and the environment; completion in shells."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from command import SMALL, run_here

import edgekv
from edgekv.cli.settings import defaults, preset_options

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """A function that writes the settings file."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("EDGEKV_CONFIG", str(path))
    path.touch()
    return path.write_text


@pytest.fixture
def command():
    import typer.main

    from edgekv.cli.main import app

    return typer.main.get_command(app)


def planned(*arguments, **variables):
    ended = run_here("plan", "--json", *arguments, **variables)
    assert ended.returncode == 0, ended.stderr
    plan = json.loads(ended.stdout)
    return plan["ceiling_bytes"] >> 20, plan["budget_cells"]


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(model, settings):
    settings(f'model = "{model}"\nmemory = "4GiB"\nthreads = 1\n[plan]\nbudget = 64\n[chat]\nbudget = 32\n')
    assert planned() == (4096, 64)
    assert planned(EDGEKV_MEMORY="3900MiB") == (3900, 64)
    assert planned("--memory", "3800MiB", EDGEKV_MEMORY="3900MiB", EDGEKV_BUDGET="100") == (3800, 100)


def test_a_preset_comes_between_the_environment_and_the_file(model, settings):
    settings('[chat]\ntemp = 0.1\nseed = 1\n[preset.wild]\ntemp = 2.0\nmin-p = 0.5\nsystem = "Be wild."\n')
    arguments = ("chat", "-m", model, *SMALL, "--preset", "wild")
    ended = run_here(*arguments, "--top-k", "3", stdin="/set\n/system\n", EDGEKV_MIN_P="0.25")
    assert ended.returncode == 0, ended.stderr
    for said in ("temp 2.0", "min-p 0.25", "top-k 3", "seed 1", "Be wild."):
        assert said in ended.stderr


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("tempo = 1", "'tempo' is no option of any command; did you mean temp"),
        ("[chat]\ntempo = 1", "[chat]: 'tempo' is no option of edgekv chat; did you mean temp"),
        ("[chatt]\ntemp = 1", "[chatt] is no command; did you mean [chat]? possible: ask, chat"),
        ("[chat]\nzzz = 1", "[chat]: 'zzz' is no option of edgekv chat; --help of a command lists its options"),
        ("[chat.temp]\nx = 1", "[chat]: temp = {'x': 1} is not possible; give a text"),
        ("[chat]\npreset = 'x'", "'preset' is no option of edgekv chat"),
        ("temp = ", "cannot be used: "),
    ],
)
def test_mistakes_in_the_file_are_told(settings, command, written, message):
    settings(written)
    with pytest.raises(edgekv.ConfigError, match=re.escape(message)):
        defaults(command)


def test_presets_that_are_not_there(settings, command):
    chat = command.commands["chat"]
    settings("[preset.calm]\ntemp = 0\n")
    assert preset_options("calm", chat) == {"temp": 0}
    with pytest.raises(edgekv.ConfigError, match=r"there is no preset 'wild' in .*; there: calm; write a table"):
        preset_options("wild", chat)
    settings("[preset.calm]\nmood = 0\n")
    with pytest.raises(edgekv.ConfigError, match=r"\[preset.calm\]: 'mood' is no option of edgekv chat"):
        preset_options("calm", chat)


def test_a_file_that_is_named_must_be_there(command, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKV_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(edgekv.ConfigError, match=r"EDGEKV_CONFIG names .* which is not a file"):
        defaults(command)
    monkeypatch.delenv("EDGEKV_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert defaults(command) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="of bash")
def test_a_shell_completes_commands_options_and_names(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    sessions = tmp_path / "edgekv" / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "mine.session").touch()
    program = "from edgekv.cli.main import app; app(prog_name='edgekv')"

    def asked(instruction, typed=""):
        place = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
        environment = os.environ | {"_EDGEKV_COMPLETE": instruction} | place
        return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout

    assert "complete -o default -F _edgekv_completion edgekv" in asked("source_bash")
    assert asked("complete_bash", "edgekv ses").split() == ["sessions"]
    assert asked("complete_bash", "edgekv chat --sess").split() == ["--session"]
    assert asked("complete_bash", "edgekv chat --session ").split() == ["mine"]
