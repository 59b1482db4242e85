"""The command line shows an archive in plans, replies, chats and texts, and refuses it beside other options."""

from __future__ import annotations

import json
import re

import pytest
from command import SMALL, run_here, words

REPLY = ["--temp", "0", "--max-tokens", "4"]
LONG = words(200)
ARCHIVED = ["--policy", "keydiff", "--archive", "8MiB"]


def chat(model, *lines, options=ARCHIVED):
    return run_here("chat", "-m", model, *SMALL, *REPLY, *options, stdin="\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("archive", "limit"), [("8MiB", "the most of a session, 8.0 MiB,"), ("auto", "a quarter of what")]
)
def test_plan_says_how_long_the_limit_lasts(model, archive, limit):
    options = ["-m", model, *SMALL, "--policy", "keydiff", "--archive", archive]
    plan = json.loads(run_here("plan", *options, "--json").stdout)
    assert plan["archive_token_bytes"] > plan["cell_bytes"]
    assert 0 < plan["archive_tokens"] <= plan["archive_bytes"] // plan["archive_token_bytes"]
    shown = run_here("plan", *options).stdout
    assert f"archived on the disk, in {plan['archive_token_bytes']:,} bytes a token; {limit}" in shown


def test_plan_says_why_auto_is_off(model):
    options = ["-m", model, *SMALL, "--policy", "replay"]
    told = "what is evicted is not archived: policy=replay, which scores a token once, when its block is read"
    assert told in run_here("plan", *options, "--archive", "auto").stdout
    assert "archive" not in run_here("plan", *options, "--archive", "off").stdout
    refused = run_here("plan", *options, "--archive", "1MiB")
    assert (refused.returncode, "--archive 1MiB does not go with --policy replay" in refused.stderr) == (2, True)


def test_the_report_of_ask_has_the_figures_of_the_archive(model, text_file):
    asked = ["ask", "-m", model, *SMALL, *REPLY, *ARCHIVED, "-f", text_file(LONG), "What?", "--json"]
    report = json.loads(run_here(*asked).stdout)
    assert report["kept_tokens"] + report["recallable_tokens"] == report["tokens_seen"]
    assert (report["forgotten_tokens"], report["archive_failure"]) == (0, "")
    assert report["archived_tokens"] > report["recallable_tokens"] > 0
    assert report["scanned_tokens"] == 2 * report["archived_tokens"]
    assert report["archived_bytes"] > 0


def test_a_chat_shows_what_is_archived(model):
    shown = chat(model, LONG, "/stats", "/kept")
    seen, recallable = re.search(r"remembers (\S+) of \1 tokens, (\S+) of them archived", shown.stderr).groups()
    assert 0 < int(recallable.replace(",", "")) < int(seen.replace(",", ""))
    assert re.search(
        r"tokens archived · 1 recall of 16 cells from [\d,]+ scanned tokens in", " ".join(shown.stderr.split())
    )
    assert "no longer remembered" not in shown.stderr
    text = shown.stdout[shown.stdout.index("forgotten,") :]
    assert "· archived" in " ".join(text.split())
    assert re.search("^·+", text, re.MULTILINE)


def test_a_chat_says_when_the_limit_is_reached(model):
    shown = chat(model, LONG, options=["--policy", "keydiff", "--archive", "128KiB"]).stderr
    assert re.search(
        r"archive: its 0\.1 MiB are full; tokens from [\d,]+ on are forgotten when they are evicted", shown
    )
    assert "older parts of this chat are no longer remembered in full" in shown


def test_inspect_has_three_shades(model, text_file, tmp_path):
    page = tmp_path / "page.html"
    asked = ["inspect", "-m", model, *SMALL, "--policy", "keydiff", "-f", text_file(LONG), "--html", page, "--json"]
    report = json.loads(run_here(*asked, "--archive", "128KiB").stdout)
    begin, end = report["archived"]
    assert begin == 0 < end < len(report["pieces"])
    html = page.read_text()
    shades = [int(shade) for shade in re.findall(r'<span class="t(\d)" title=', html)]
    for position, (shade, n_heads) in enumerate(zip(shades, report["counts"], strict=True)):
        assert (shade == 5) == (n_heads == 0 and position < end)
    assert {0, 5} < set(shades)
    assert "no head, but archived" in html
    assert "archived" not in inspected_without(asked, page)


def inspected_without(asked, page):
    assert json.loads(run_here(*asked, "--archive", "off").stdout)["archived"] == [0, 0]
    return page.read_text()


def test_what_is_saved_without_its_archive_refuses_one(model, text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    asked = ["read", "-m", model, *SMALL, "--save", "it", "-f", text_file(LONG)]
    refused = run_here(*asked, "--archive", "1MiB")
    assert refused.returncode == 2
    assert "--archive 1MiB is gone when what was read is saved" in refused.stderr
    assert run_here(*asked, "--archive", "auto").returncode == 0
    serving = run_here("mcp", "-m", model, *SMALL, "--archive", "1MiB")
    assert (serving.returncode, "--archive 1MiB is gone when what was read is saved" in serving.stderr) == (2, True)


@pytest.mark.parametrize("options", [[], ["--focus-on", "word3"], ["--passes", "2"], ["--focus-policy", "snapkv"]])
def test_ask_reads_with_its_question_and_recalls_with_it(model, text_file, options):
    asked = ["ask", "-m", model, *SMALL, *REPLY, *ARCHIVED, "-f", text_file(LONG), "What?", "--json", *options]
    report = json.loads(run_here(*asked).stdout)
    assert report["focus"] is not None
    assert report["archived_tokens"] > report["recallable_tokens"] > 0
