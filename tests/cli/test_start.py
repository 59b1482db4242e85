"""The first things that a user meets: version, help, a mistake, a model that loads, Ctrl-C."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import itertools
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from children import LIMIT_S, started
from command import SMALL, run_here, run_program, words
from terminal import Terminal

import edgekv
from edgekv.cli.shared_options import SECTIONS, common

COMMAND = [sys.executable, "-m", "edgekv"]
COMMANDS = [
    "ask",
    "complete",
    "chat",
    "plan",
    "pull",
    "inspect",
    "models",
    "models list",
    "models show",
    "models rm",
    "policies",
]
COMMANDS += ["complete", "bench", "eval", "eval needle", "devices", "rpc-server"]


def test_the_version():
    assert edgekv.__version__ == importlib.metadata.version("edgekv")
    assert run_program("--version").stdout == f"edgekv {edgekv.__version__}\n"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_h_is_help(command):
    short, long = (run_here(*command.split(), option) for option in ("-h", "--help"))
    assert short.returncode == 0
    assert short.stdout == long.stdout
    assert short.stdout.startswith("Usage: ")


def sections_of(command):
    """Return the options in each section of a command's help."""
    parts = re.split(r"^(\S.*):\n", run_here(*command.split(), "--help").stdout, flags=re.MULTILINE)[1:]
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    return {section: re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE) for section, text in texts.items()}


SHARED = {"Model", "Memory", "What is kept", "Speed and devices"}


@pytest.mark.parametrize("command", ["ask", "complete", "chat", "read", "inspect", "serve", "mcp", "batch", "plan"])
def test_options_that_commands_share_stand_in_the_same_sections(command):
    sections = sections_of(command)
    assert set(sections) >= SHARED | {"Options"}
    for section in SHARED:
        shared = [f"--{name.replace('_', '-')}" for name in SECTIONS[section]]
        assert set(sections[section]) <= set(shared), section
    assert "--help" in sections["Options"]
    assert not {*sections["Options"]} & {"--model", "--budget", "--threads", "--temp"}
    assert max(map(len, sections.values())) <= 18
    if command in ("ask", "complete", "chat"):
        assert {"--temp", "--max-tokens", "--stop"} <= set(sections["Reply"])


def test_every_option_of_a_section_is_one_that_commands_share():
    listed = [*itertools.chain.from_iterable(SECTIONS.values())]
    assert sorted(listed) == sorted(inspect.signature(common).parameters)


def test_tasks_of_eval_have_sections():
    sections = sections_of("eval needle")
    assert [*sections] == ["Options", "Questions", "What is compared", "Results and work"]
    assert {"--depth", "--needles"} < set(sections["Options"])


@functools.cache
def options_of(command):
    return re.findall(r"(?<!\w)--[a-z-]+", run_here(command, "--help").stdout)


def refused(*arguments):
    result = run_here(*arguments)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    return result.stderr


def test_inspect_says_what_is_missing():
    assert (
        refused("inspect") == "edgekv: there is nothing to inspect; give a text file (-f FILE), a question, or both\n"
    )


def test_sizes_as_people_write_them(model):
    assert refused("ask", "-m", model, "--memory", "256", "Q") == (
        "edgekv: size 256 means bytes, which is too little; write 256MiB\n"
    )
    assert "under 4096.0 MiB" in run_here("plan", "-m", model, "--memory", "4G").stdout


@pytest.mark.parametrize(
    ("command", "mistake", "message"),
    [
        ("ask", ["--max-tokens", "0"], "--max-tokens 0 is not possible; give at least 1"),
        ("ask", ["--block", "0"], "--block 0 is not possible; give a whole number in [1, 4096]"),
        ("ask", ["--budget", "5"], "--budget 5 does not hold the protected cells"),
        ("ask", ["--kv-type", "f99"], "--kv-type 'f99' is unknown; possible: f16"),
        ("ask", ["--reposition", "now"], "--reposition 'now' is unknown"),
        ("ask", ["--repack", "--mmap"], "--mmap with --repack would hold the weights twice"),
        ("ask", ["--temp", "-1"], "--temp -1.0 is not possible"),
        ("ask", ["--repeat-penalty", "0"], "--repeat-penalty 0.0 is not possible"),
        ("ask", ["--focus-policy", "keydiff"], "--focus-policy keydiff reads no queries"),
        ("ask", ["--memory", "200%"], "--memory '200%' is not possible"),
        ("ask", ["--policy", "keydiff(kernel=0)"], "keydiff(kernel=0)"),
        ("inspect", ["--isolated"], "--isolated keeps model and cells in another process"),
        ("inspect", ["--layer", "9"], "--layer 9 is not in the model"),
        ("ask", ["--allow-beyond-trained", "--system", "word " * 60], "--budget 64 does not hold the protected cells"),
        ("inspect", ["--longest", "5"], "more than --longest 5; give a shorter text, or --longest 8"),
    ],
)
def test_mistakes_are_told_in_options(model, command, mistake, message):
    """No message speaks of arguments of Python, and every option in one is an option of the command."""
    told = refused(command, "-m", model, *SMALL[:4], "What is this?", *mistake)
    assert message in told
    assert told.startswith("edgekv: ")
    assert not re.search(r"(?<![\w(])[a-z_]+=", re.sub(r"\(.*?\)", "", told))
    assert not re.search(r"\b(None|True|False)\b", told)
    options = options_of(command)
    assert set(re.findall(r"(?<!\w)--[a-z-]+", told)) <= set(options)


def test_python_keeps_its_own_words(model):
    with pytest.raises(edgekv.ConfigError, match="block=0 is not possible"):
        edgekv.plan(model, block=0)


@pytest.mark.parametrize(
    ("option", "value", "isolated"),
    [("gpu_layers", 4, False), ("device_memory", "1GiB", False), ("gpu_layers", 4, True)],
)
def test_what_only_a_gpu_can_do_is_refused_without_one(model, option, value, isolated):
    from edgekv.binding.ggml_devices import has_gpu

    if has_gpu():
        pytest.skip("there is a GPU")
    message = (
        f"{option}={value} needs a GPU, and there is none, or this build cannot use it; leave {option} out, or build"
    )
    for refuse in (edgekv.plan, edgekv.survey, edgekv.Runtime):
        with pytest.raises(edgekv.ConfigError) as caught:
            refuse(model, memory="4GiB", isolated=isolated, **{option: value})
        assert str(caught.value).startswith(message)
        assert "-DGGML_CUDA=ON" in str(caught.value)
    spelt = "--" + option.replace("_", "-")
    assert f"{spelt} {value} needs a GPU" in refused("plan", "-m", model, spelt, value)


LOUD = "from edgekv.__main__ import main; print('started', flush=True); raise SystemExit(main())"


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("isolated", [[], ["--isolated"]], ids=["here", "isolated"])
def test_ctrl_c_at_any_moment_ends_quietly(model, tmp_path, isolated):
    """Imports, planning, loading, reading."""
    endless = tmp_path / "endless.txt"
    endless.write_text(words(500_000))
    command = [sys.executable, "-c", LOUD, "ask", "-m", model, *SMALL, *isolated, "-f", endless, "What?"]
    draw = random.Random(0)
    for i in range(8):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with started(command, **pipes) as process:
            assert process.stdout.readline() == b"started\n"
            time.sleep(draw.uniform(0, 0.4 * (i + 1)))
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, output, errors) == (130, b"", b"")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_a_word_on_the_terminal_while_it_loads(model):
    main, end = pty.openpty()
    command = [*COMMAND, "ask", "-m", model, *SMALL, "--max-tokens", "3", "What?"]
    with started(command, stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        output = Terminal(main)
        output.wait_for("loading ...")
        output.wait_for("\r           \r")
        output.wait_for("tok/s")
        assert process.wait(LIMIT_S) == 0
    os.close(main)
    quiet = run_here("ask", "-m", model, *SMALL, "--max-tokens", "3", "What?")
    assert quiet.returncode == 0
    assert "loading" not in quiet.stderr
