"""The command line as a user runs it: what is printed where, and with which exit status."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from children import LIMIT_S, started
from command import COMMAND, SMALL, run_here, run_program, words
from terminal import Terminal


def test_ask_json_prints_one_object_and_nothing_else(model, book):
    result = run_program("ask", "-m", model, *SMALL, "-f", book, "What?", "--max-tokens", 50, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert set(report) == {
        *("answer", "model", "policy", "budget_cells", "block", "kv_type", "prompt_tokens", "generated_tokens"),
        *("finish_reason", "evictions", "repositions", "budgets", "kv_bytes", "focus", "memory", "timing"),
        *("drafted_tokens", "accepted_tokens", "tokens_seen", "kept_tokens", "forgotten_tokens"),
        *("recalls", "recalled_cells", "scanned_tokens", "archived_tokens", "recallable_tokens", "archived_bytes"),
        "archive_failure",
    }
    assert set(report["memory"]) == {
        *("ceiling_bytes", "planned_peak_bytes", "peak_rss_bytes", "times_over_ceiling", "parts"),
    }
    assert report["memory"]["times_over_ceiling"] == 0
    assert report["memory"]["planned_peak_bytes"] == sum(report["memory"]["parts"].values())
    assert report["memory"]["peak_rss_bytes"] <= report["memory"]["ceiling_bytes"]
    assert set(report["timing"]) == {
        *("load_s", "prefill_s", "ttft_s", "prefill_tok_per_s", "decode_tok_per_s"),
        *("probe_s", "score_s", "compact_s", "recall_s", "archive_s"),
    }
    assert (report["budget_cells"], report["block"], report["policy"]) == (64, 32, "keydiff(rope=off)")
    assert report["prompt_tokens"] > 400
    assert report["evictions"] > 10
    left = [n for layer in report["budgets"] for n in layer]
    assert min(left) >= 64
    assert sum(left) == (64 + 16) * len(left)  # its recall brought 16
    assert report["kv_bytes"] == report["memory"]["parts"]["kv"]
    assert report["focus"].startswith("snapkv(")
    assert report["timing"]["probe_s"] > 0


def test_ask_reads_for_several_things(model, book):
    asked = ("ask", "-m", model, *SMALL, "What?", "--max-tokens", 4, "--json")
    several = run_here(*asked, "-f", book, "--focus-on", "a", "--focus-on", "b")
    assert json.loads(several.stdout)["focus"].startswith("snapkv(")
    refused = run_here(*asked, "-f", book, "--focus-on", "word " * 99, "--focus-on", "b")
    assert refused.returncode != 0
    assert "focus has 2 parts of " in json.loads(refused.stdout)["error"]["message"]


def test_ask_without_focus_never_feeds_a_probe(model, book):
    asked = ["ask", "-m", model, *SMALL, "-f", book, "What?", "--max-tokens", 5, "--json"]
    report = json.loads(run_here(*asked, "--no-focus", "--archive", "off").stdout)
    assert report["focus"] is None
    assert report["timing"]["probe_s"] == 0
    focused = json.loads(run_here(*asked).stdout)
    assert focused["prompt_tokens"] == report["prompt_tokens"]


def test_ask_streams_the_answer_to_stdout_and_the_footer_to_stderr(model, book):
    result = run_here("ask", "-m", model, *SMALL, "-f", book, "What?", "--max-tokens", 20)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    for word in ("remembers ", " tokens", "tok/s", "peak", "of 4096.0 MiB"):
        assert word in result.stderr


def test_ask_reads_standard_input(model, book):
    text = book.read_text()
    by_file = run_here("ask", "-m", model, *SMALL, "-f", book, "What?", "--max-tokens", 20, "--json")
    for arguments in (["-f", "-"], []):
        piped = run_here("ask", "-m", model, *SMALL, *arguments, "What?", "--max-tokens", 20, "--json", stdin=text)
        assert json.loads(piped.stdout)["answer"] == json.loads(by_file.stdout)["answer"]


def test_an_isolated_answer_is_the_same(model, book):
    arguments = ["ask", "-m", model, *SMALL, "-f", book, "What?", "--max-tokens", 20, "--json"]
    here, there = (json.loads(run_here(*arguments, *isolated).stdout) for isolated in ([], ["--isolated"]))
    assert there["answer"] == here["answer"]
    assert there["budgets"] == here["budgets"]
    assert there["memory"]["peak_rss_bytes"] < there["memory"]["planned_peak_bytes"]


def test_a_seed_makes_an_answer_reproducible(model):
    arguments = ["ask", "-m", model, *SMALL, "What?", "--temp", "1.5", "--max-tokens", 20]
    first, again, other = (run_here(*arguments, "--seed", seed).stdout for seed in (1, 1, 2))
    assert first == again != other


def test_chat_answers_line_by_line(model, book):
    lines = f"Hello\n/read {book}\nWhat?\n/read nothing\n/read\n\n/help\n/exit\nnever\n"
    result = run_here("chat", "-m", model, *SMALL, "--max-tokens", 10, "--temp", "0", stdin=lines)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("tok/s") == 4  # two footers, two speeds each
    assert "goes with your next message" in result.stderr
    assert "'nothing' is not a file" in result.stderr
    assert "nothing is named; write /read and the paths of text files" in result.stderr


def test_plan_and_models(model):
    plan = json.loads(run_here("plan", "-m", model, "--memory", "4GiB", "--json").stdout)
    assert plan["planned_peak_bytes"] == sum(plan["parts"].values()) <= 4 << 30
    assert plan["bound_by"] == "trained context"
    assert plan["budget_cells"] == plan["with_more"]["budget_cells"] == 2048 - plan["block"] - 64  # a block, a probe
    assert {(other["kv_type"], other["block"]) for other in plan["alternatives"]} == {
        (kv_type, block) for kv_type in ("f16", "q8_0", "q4_0") for block in (128, 64, 32)
    }
    shown = run_here("plan", "-m", model, "--memory", "4GiB").stdout
    for line in (
        "planned peak",
        "the budget is the model's trained context",
        "64.0 MiB more would change nothing",
        "what grows with a text: cells of all 2,048 tokens would take",
        "a cell holds the key and the value of one token",
        f"a block is the {plan['block']} tokens",
        f"spare cells, {plan['block']} for each head",
        "block 32",
    ):
        assert line in shown
    assert "these are few" not in shown
    few = run_here("plan", "-m", model, "--memory", "4GiB", "--budget", "64").stdout
    assert "these are few" in few
    models = json.loads(run_here("models", "--json").stdout)
    assert models[0]["name"] == "smollm2-135m-instruct"
    assert "Apache-2.0" in run_here("models").stdout


def test_plan_of_the_default_model(default_model):
    few = run_here("plan", "--memory", "4GiB", "--budget", "64").stdout
    assert "these are few" in few
    # a process of its own, because this one may hold so much by now that nothing is left for cells
    tight = run_program("plan", "--memory", "220MiB")
    assert tight.returncode == 0, tight.stderr
    assert re.search(r"with 64\.0 MiB more: [\d,]+ cells", tight.stdout)


def refused(status, words, *arguments, stdin=""):
    result = run_here(*arguments, stdin=stdin)
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert words in result.stderr
    return result.stderr


def test_usage_errors_exit_with_2(model, book, tmp_path):
    ask = ["ask", "-m", model, *SMALL]
    refused(2, "QUESTION", "ask")
    refused(2, "No such option", "ask", "--nonsense")
    for message, arguments in {
        "policy 'nonsense' is unknown; possible: keydiff": ["--policy", "nonsense", "What?"],
        "no option": ["--policy", "keydiff(size=3)", "What?"],
        "size '12 parsecs'": ["--memory", "12 parsecs", "What?"],
        "cannot be read": ["-f", tmp_path / "absent.txt", "What?"],
        "the text is empty": [" "],
    }.items():
        line = refused(2, message, *ask, *arguments).strip()
        assert line.startswith("edgekv: ")
        assert "\n" not in line
    binary = tmp_path / "binary"
    binary.write_bytes(b"\0\1\2")
    refused(2, "is not text", *ask, "-f", binary, "What?")
    long = tmp_path / "long.txt"
    long.write_text(book.read_text() * 10)
    stay = ["--reposition", "never"]
    refused(2, "trained on 2048", *ask, "-f", long, "What?", *stay)
    for further in ([], [*stay, "--allow-beyond-trained"]):
        assert run_here(*ask, "-f", long, "What?", *further, "--max-tokens", 5).returncode == 0


def test_a_ceiling_that_does_not_hold_the_model_exits_with_3(model):
    message = refused(3, "raise the ceiling to", "ask", "-m", model, "--memory", "10MiB", "What?")
    assert "are needed" in message
    found = run_program("ask", "-m", model, "--memory", "150MiB", "--budget", "2000000", "What?")
    assert (found.returncode, found.stdout) == (3, "")
    assert "lower the budget to" in found.stderr


def test_models_that_cannot_be_used_exit_with_4(model, tmp_path):
    refused(4, "known: smollm2", "ask", "-m", "absent.gguf", "What?")
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    refused(4, "text.gguf", "ask", "-m", text, "What?")
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(model.read_bytes()[:100_000])
    refused(4, "download it again", "ask", "-m", truncated, "What?")


@pytest.fixture(scope="module")
def endless_book(text_file):
    """A text that takes minutes to read."""
    return text_file(words(150_000))


PLANNED = """
import sys
from edgekv.cli.main import main
sys.addaudithook(lambda event, _: event == "edgekv.runtime" and print("planned", flush=True))
sys.exit(main())
"""


def test_interrupting_ask_exits_with_130(model, endless_book):
    command = [sys.executable, "-c", PLANNED, "ask", "-m", str(model), *SMALL, "-f", str(endless_book), "What?"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(command, **pipes) as process:
        assert process.stdout.readline() == b"planned\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert output == errors == b""


@pytest.mark.parametrize(
    "isolated", [pytest.param([], id="here", marks=pytest.mark.nightly), pytest.param(["--isolated"], id="isolated")]
)
def test_ctrl_c_in_chat_stops_the_reply_and_keeps_the_session(model, endless_book, isolated):
    """On a terminal: Ctrl-C while a prompt is read gives its file back, another line is answered, and /exit leaves."""
    main, terminal = pty.openpty()
    command = [*COMMAND, "chat", "-m", str(model), *SMALL, "--max-tokens", "3", "--plain", *isolated]
    ends = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with started(command, **ends, cwd=endless_book.parent, start_new_session=True) as process:
        os.close(terminal)
        output = Terminal(main)
        output.wait_for("> ")
        output.type(f"/read {endless_book.name}")  # a short name, which leaves the answer on one line
        output.wait_for("goes with your next message")
        output.type("What?")
        output.wait_for("reading")
        process.send_signal(signal.SIGINT)
        output.wait_for("stopped")
        output.wait_for("what was read of it is taken back: ")
        output.wait_for("> What?")  # the message is offered again
        output.type("/drop")  # behind the message, which is offered once more
        output.wait_for("left out")
        output.wait_for("> What?")
        output.type("\x15Hello")  # Ctrl-U clears the line
        output.wait_for("generation")
        output.type("/exit")
        assert process.wait(LIMIT_S) == 0
    os.close(main)


def test_architectures():
    output = run_here("models", "--architectures").stdout
    assert "lfm2" in output
    assert "gpt-oss" in output
    listed = {row["name"]: row for row in json.loads(run_here("models", "--architectures", "--json").stdout)}
    assert listed["llama"]["refused"] == ""
    assert listed["bloom"]["refused"] == "ALiBi"
    assert listed["lfm2"]["evicted"] == "the rows of layers that attend"


OTHERS = "import sys; from edgekv.cli.main import main; main(); "
OTHERS += "print('others', *{f'edgekv.cli.{it}' for it in ('chat', 'models', 'serve')} & set(sys.modules), sep=':')"


def test_a_command_imports_no_other():
    """Modules of commands that nobody named would take the memory of cells."""
    ended = subprocess.run([sys.executable, "-c", OTHERS, "ask", "--help"], capture_output=True, text=True)
    assert ended.stdout.endswith("\nothers\n"), ended.stdout


THREADS = (
    "import os, edgekv.cli.main, numpy; print(os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')))"
)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="/proc tells a process its threads")
@pytest.mark.parametrize("named", [None, "2"])
def test_numpy_starts_no_thread_in_a_command_unless_some_are_named(named, monkeypatch):
    """Threads of numpy's wait by computing, which took each command a tenth of a second of the processor."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if named is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", named)
    ended = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    most = min(int(named or 1), len(os.sched_getaffinity(0)))
    assert ended.stdout == f"{named or 1} {most}\n", ended.stderr


def test_the_command_loads_neither_numpy_nor_the_library_before_a_sub_command():
    """Help and a shell's completion would wait for them."""
    looked = "import sys, edgekv.cli.main; print({'numpy', 'edgekv.binding.library'} & sys.modules.keys())"
    ended = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True)
    assert ended.stdout == "set()\n", ended.stderr
