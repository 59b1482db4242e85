"""Output in an encoding that lacks what is said: it is replaced, and the command goes on."""

from __future__ import annotations

import json

import pytest
from command import SMALL, run_here, run_program

DRAWN = ["--max-tokens", "40", "--temp", "1.5", "--seed", "3"]


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "cp437"])
def test_a_reply_is_whole_but_for_what_the_encoding_lacks(model, encoding):
    asked = ["complete", "-m", model, *SMALL, *DRAWN, "x"]
    whole, done = (run_here(*asked, PYTHONIOENCODING=name) for name in ("utf-8", encoding))
    assert (whole.returncode, done.returncode) == (0, 0), done.stderr
    assert done.stdout == whole.stdout.encode(encoding, "replace").decode(encoding) != whole.stdout


@pytest.mark.parametrize("command", ["ask", "chat", "complete", "plan", "models", "policies", "serve", "eval", "batch"])
def test_help_is_shown(command):
    done = run_here(command, "--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout


@pytest.mark.parametrize(
    "command", [["models"], ["models", "--architectures"], ["policies"], ["devices"], ["sessions", "list"]]
)
def test_tables_are_shown(command, tmp_path):
    done = run_here(*command, PYTHONIOENCODING="cp1252", XDG_DATA_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_a_chat_and_its_footer_are_shown(model):
    done = run_here("chat", "-m", model, *SMALL, *DRAWN, stdin="Hello\n/status\n/help\n", PYTHONIOENCODING="cp1252")
    assert done.returncode == 0, done.stderr
    assert "tokens seen" in done.stdout + done.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_an_error_is_a_message(encoding, model):
    done = run_here("ask", "-m", model, *SMALL, "-f", "папка/книга.txt", "What?", PYTHONIOENCODING=encoding)
    assert done.returncode == 2
    assert "?????" in done.stderr


def test_errors_as_json_keep_every_character(model):
    done = run_here("ask", "--json", "-m", model, *SMALL, "-f", "книга.txt", "What?", PYTHONIOENCODING="ascii")
    assert "книга.txt" in json.loads(done.stdout)["error"]["message"]


def test_a_program_in_such_an_encoding_ends_well(model):
    done = run_program("complete", "-m", model, *SMALL, *DRAWN, "x", PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
