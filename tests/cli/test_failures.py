"""Messages of commands that fail: where a wrong value comes from, JSON, and names that other programs have."""

from __future__ import annotations

import json
import re

import pytest
from command import SMALL, run_here

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    path.touch()
    monkeypatch.setenv("EDGEKV_CONFIG", str(path))
    return path


@pytest.mark.parametrize(
    ("name", "value"), [("memory", "junk"), ("memory", "1MiB"), ("policy", "keydif"), ("budget", "junk")]
)
def test_the_place_of_a_wrong_value_is_named(settings, name, value, monkeypatch):
    monkeypatch.setenv(f"EDGEKV_{name.upper()}", value)
    told = f"--{name} {value} comes from EDGEKV_{name.upper()}"
    ended = run_here("plan")
    assert ended.returncode in (2, 3)
    assert told in ended.stderr or f"(env var: 'EDGEKV_{name.upper()}')" in ended.stderr
    monkeypatch.delenv(f"EDGEKV_{name.upper()}")
    settings.write_text(f'{name} = "{value}"\n')
    ended = run_here("plan")
    assert f"--{name} {value} comes from {settings}" in ended.stderr
    assert "EDGEKV_" not in ended.stderr
    typed = run_here("plan", f"--{name}", value)
    assert typed.returncode == ended.returncode
    assert "comes from" not in typed.stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "status"),
    [
        (["plan", "--memory", "junk"], "ConfigError", 2),
        (["plan", "--memory", "1MiB"], "CeilingError", 3),
        (["plan", "--model", "no-such.gguf"], "ModelNotFoundError", 4),
        (["plan", "--bugdet", "5"], "UsageError", 2),
        (["ask", *SMALL, "What?", "-f", "no-such.txt"], "InputError", 2),
        (["sessions", "show", "no-such"], "SessionFileError", 2),
    ],
)
@pytest.mark.usefixtures("settings")
def test_errors_are_json_where_json_is_asked_for(arguments, kind, status):
    plain, ended = run_here(*arguments), run_here(*arguments, "--json")
    assert ended.returncode == plain.returncode == status
    assert (plain.stdout, ended.stderr) == ("", "")
    (error,) = json.loads(ended.stdout).values()
    assert (error["type"], error["status"]) == (kind, status)
    assert without_sizes(error["message"]) in without_sizes(plain.stderr)


def without_sizes(message):
    """Return a message without the sizes in it: this process grows between two plans, and a plan counts it."""
    return re.sub(r"[\d.]+ ?MiB", "MiB", message)


def test_json_after_two_dashes_is_a_text(settings):
    ended = run_here("ask", "--memory", "junk", "--", "--json")
    assert (ended.stdout, ended.returncode) == ("", 2)
    assert "junk" in ended.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("run", "edgekv chat -m MODEL"), ("list", "edgekv models list"), ("ls", "edgekv models list")]
)
def test_names_of_other_programs_say_what_is_meant(typed, meant):
    ended = run_here(typed, "llama3")
    assert ended.returncode == 2
    assert f"no command '{typed}'; write `{meant}`" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["chat", "-c", "4096"], "no option -c; write --memory SIZE"),
        (["serve", "--ctx-size=4096"], "no option --ctx-size; write --memory SIZE"),
        (["chat", "-ngl", "99"], "no option -ngl; write --gpu-layers N"),
        (["ask", "-n", "50", "Hello"], "no option -n; write --max-tokens N"),
        (["chat", "--temperature", "0.5"], "no option --temperature; write --temp NUMBER"),
        (["complete", "-p", "Hello"], "no option -p; write the text itself"),
    ],
)
def test_options_of_other_programs_say_what_is_meant(arguments, meant):
    ended = run_here(*arguments)
    assert ended.returncode == 2
    assert meant in ended.stderr


def test_an_option_that_a_command_does_not_have_is_not_told_of():
    ended = run_here("serve", "-n", "5")
    assert "--max-tokens" not in ended.stderr
    assert "No such option '-n'" in ended.stderr


def test_a_question_without_a_command_is_told_which_asks_it():
    ended = run_here("Who is Toto?")
    assert ended.returncode == 2
    assert "edgekv ask 'Who is Toto?'" in ended.stderr


def test_help_is_a_command():
    assert run_here("help").stdout == run_here("--help").stdout
    assert run_here("help", "plan").stdout == run_here("plan", "--help").stdout
