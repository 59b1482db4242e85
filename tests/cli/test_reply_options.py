"""Options that choose tokens and end a reply are the same in `ask` and in `chat`."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from command import SMALL, run_here

from edgekv import Sampling, Stats
from edgekv.cli.render import print_footer
from edgekv.generation.request import MAX_TOKENS


@pytest.fixture(scope="module")
def reply(model):
    """A function from a command and its options to what it says to "Hello"; the same for the same options."""
    known = {}

    def reply(command, *options):
        if (command, options) not in known:
            line = [command, "-m", model, *SMALL, "--max-tokens", "40", "--seed", "1", *options]
            result = run_here(*line, "Hello") if command == "ask" else run_here(*line, stdin="Hello\n")
            assert result.returncode == 0, result.stderr
            known[command, options] = result.stdout
        return known[command, options]

    return reply


# an option, what it is by default, and a value that makes another reply of that of a high temperature
OPTIONS = {
    "--top-k": ("40", "2"),
    "--top-p": ("0.95", "0.1"),
    "--min-p": ({"ask": "0.0", "chat": "0.1"}, "0.9"),
    "--repeat-penalty": ("1.1", "2"),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("command", ["ask", "chat"])
def test_options_do_what_they_say_in_every_command(reply, command, option):
    default, other = OPTIONS[option]
    default = default[command] if isinstance(default, dict) else default
    assert reply(command, "--temp", "3") == reply(command, "--temp", "3", option, default)
    assert reply(command, "--temp", "3") != reply(command, "--temp", "3", option, other)


@pytest.mark.parametrize(
    ("command", "given"), [("ask", ("--temp", "0")), ("chat", ("--temp", "0.5", "--min-p", "0.1"))]
)
def test_commands_differ_by_their_temperature_and_what_is_unlikely(reply, command, given):
    assert reply(command) == reply(command, *given)
    assert reply(command) != reply(command, "--temp", "3")


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_a_reply_ends_before_a_stop_text(reply, command):
    whole = reply(command, "--temp", "0")
    stop = whole[10:13]
    assert reply(command, "--temp", "0", "--stop", "never", "--stop", stop) == whole[: whole.find(stop)] + "\n"


def test_chat_does_not_begin_its_random_numbers_again(model):
    """Nearly every token is as likely as any other, so equal random numbers would say the same twice."""
    wild = ["--temp", "100", "--top-k", "0", "--top-p", "1", "--repeat-penalty", "1", "--seed", "1"]
    line = ["chat", "-m", model, *SMALL, "--max-tokens", "30", *wild]
    one = run_here(*line, stdin="Hello\n").stdout
    two = run_here(*line, stdin="Hello\nHello\n").stdout
    first, second = two[: len(one) - 1], two[len(one) :]
    assert first == one[:-1]
    assert second[:10] != first[:10]


def test_a_question_about_a_file_is_put_as_it_stands_when_raw(model, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("The house stands by the river. ")

    def n_prompt(*arguments):
        return json.loads(run_here("ask", "-m", model, *SMALL, *arguments, "--max-tokens", 1, "--json").stdout)[
            "prompt_tokens"
        ]

    assert n_prompt("-f", book, "What?", "--raw") < n_prompt("-f", book, "What?")


def test_a_loop_is_told_of(capsys):
    plan = SimpleNamespace(block=32, ceiling_bytes=1 << 30)
    for reason, told in (("loop", True), ("end", False)):
        print_footer(Stats(finish_reason=reason), plan)
        assert ("ended: it repeats itself" in capsys.readouterr().err) == told


ARGUMENTS = """
import edgekv, typer
from edgekv.cli.shared_options import reply_arguments, with_reply_options
app = typer.Typer()
app.command()(with_reply_options(edgekv.Sampling())(lambda reply: print(reply_arguments(reply))))
app()
"""


@pytest.mark.parametrize("options", [[], ["--allow-loops"]])
def test_options_become_the_arguments_of_a_reply(options):
    line = [sys.executable, "-c", ARGUMENTS, *options]
    printed = subprocess.run(line, capture_output=True, text=True, timeout=300, check=True).stdout
    expected = {"sampling": Sampling(), "stop": (), "max_tokens": MAX_TOKENS, "allow_loops": bool(options)}
    assert printed == f"{expected}\n"


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_values_that_cannot_work_are_refused(model, command):
    for words, options in {
        "--top-k -1": ["--top-k", "-1"],
        "--top-p 2.0": ["--top-p", "2"],
        "--min-p -1.0": ["--min-p", "-1"],
        "--temp -1.0": ["--temp", "-1"],
        "--repeat-penalty 0.5": ["--repeat-penalty", "0.5"],
        "--seed -2": ["--seed", "-2"],
    }.items():
        question = ["Hello"] if command == "ask" else []
        result = run_here(command, "-m", model, *SMALL, *options, *question, stdin="Hello\n")
        assert (result.returncode, result.stdout) == (2, "")
        assert words in result.stderr
    if command == "ask":
        result = run_here(command, "-m", model, *SMALL, "--stop", "", "Hello")
        assert result.returncode == 2
        assert "--stop ''" in result.stderr
