"""A chat and `ask` without an archive say what was evicted: when it begins, how many tokens, of which messages."""

from __future__ import annotations

import json
import re

import pytest
from command import SMALL, run_here, words

import edgekv
from edgekv.cli import render
from edgekv.generation.stats import kept_tokens

REPLY = ["--max-tokens", "4", "--temp", "0", "--archive", "off"]
HINT = "older parts of this chat are no longer remembered in full"
LONG = words(30)  # more tokens than the 64 cells and the spare ones hold, and few enough to be a message


def chat(model, *lines, options=()):
    ended = run_here("chat", "-m", model, *SMALL, *REPLY, *options, stdin="\n".join([*lines, ""]))
    assert ended.returncode == 0, ended.stderr
    return ended


def test_the_first_eviction_is_told_once(model):
    """After the reply that it came with, and neither before nor again."""
    shown = chat(model, "I am allergic to walnuts.", "/stats", LONG, "And?").stderr
    before, after = shown.split(HINT)
    assert "tokens seen" in before
    assert (before.count("remembers "), after.count("remembers ")) == (1, 1)


@pytest.mark.parametrize("isolated", [[], ["--isolated"]], ids=["here", "isolated"])
def test_a_chat_that_remembers_all_says_nothing_of_forgetting(model, isolated):
    shown = chat(model, "Hello", "/stats", options=isolated).stderr
    assert not any(word in shown for word in (HINT, "remembers", "forgotten"))
    assert re.search(r"\d+ tokens seen", shown)


def test_stats_say_how_much_is_forgotten(model):
    shown = chat(model, LONG, "/stats").stderr
    figures = shown[shown.index(".gguf", shown.index(HINT)) :]  # shown by /stats
    kept, seen = map(int, re.search(r"remembers (\d+) of (\d+) tokens", figures).groups())
    forgotten = int(re.search(r"(\d+) tokens forgotten", figures)[1])
    assert kept + forgotten == seen
    assert forgotten > 0


def test_after_undo_a_chat_that_forgets_again_says_so_again(model):
    shown = chat(model, "Hello", LONG, "/undo", "Hello", LONG).stderr
    assert shown.count(HINT) == 2


def test_a_new_chat_has_forgotten_nothing(model):
    shown = chat(model, LONG, "/system Be brief.", LONG).stderr
    assert shown.count(HINT) == 2


def test_kept_shows_every_message_of_the_user(model, text_file):
    book = text_file(words(400))
    shown = chat(model, "I am allergic to walnuts.", f"/read {book}", "What is it?", LONG, "/kept").stdout
    shown = shown[shown.index("kept by no head") :]
    marks = str.maketrans("", "", "░▒▓█\n ")
    said = [line.translate(marks) for line in shown.splitlines() if line.startswith("> ")]
    assert said[:2] == [">Iamallergictowalnuts.", ">Whatisit?"]
    assert len(said) == 3
    assert said[2].startswith(">word0word1")


def test_kept_from_a_token_on_shows_the_text_alone(model):
    shown = chat(model, "Hello", "/kept 0").stdout
    assert "> " not in shown[shown.index("kept by no head") :]


def test_ask_says_so_when_little_of_a_text_was_kept(model, text_file):
    options = ["-m", model, "--memory", "4GiB", "--budget", "128", "--block", "32", "--threads", "1", *REPLY]
    for n_words, is_told in ((10, False), (30, False), (900, True)):
        told = run_here("ask", *options, "-f", text_file(words(n_words)), "What?").stderr
        assert ("kept: do not rely on it" in told) == is_told, told
        assert ("remembers " in told) == (n_words > 10)


def test_the_report_of_ask_has_the_tokens_that_were_kept_and_forgotten(model, text_file):
    asked = ["ask", "-m", model, *SMALL, *REPLY, "-f", text_file(words(200)), "What?", "--json"]
    report = json.loads(run_here(*asked).stdout)
    assert 0 < report["kept_tokens"] <= 64 + 32
    assert report["kept_tokens"] + report["forgotten_tokens"] == report["tokens_seen"]


@pytest.mark.parametrize(
    ("n_cells", "n_seen", "n_kept", "said"),
    [
        (848, 6929, 848, "remembers 848 of 6,929 tokens"),
        (54, 54, 54, "54 tokens seen"),
        (60, 54, 54, "54 tokens seen"),  # heads of different lengths, rounded up
        (0, 54, 54, "54 tokens seen"),  # a model of states alone
        (0, 0, 0, "0 tokens seen"),
    ],
    ids=["forgotten", "all", "rounded", "states", "new"],
)
def test_how_much_is_remembered_in_words(n_cells, n_seen, n_kept, said):
    assert kept_tokens(n_cells, n_seen) == n_kept
    assert render.remembered(n_cells, n_seen) == said
    stats = edgekv.Stats(cells_used=n_cells, tokens_seen=n_seen)
    assert (stats.kept_tokens, stats.forgotten_tokens) == (n_kept, n_seen - n_kept)
