"""The command line shows an archive in plans, replies, chats and texts, and saves it with what was read."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

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
    figures = " ".join(shown.stderr.split())  # one of them may be the last of a line, and how long they are varies
    assert re.search(r"[\d,]+ tokens archived .*1 recall of 16 cells from [\d,]+ scanned tokens in", figures)
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


def test_a_text_that_was_read_with_an_archive_is_asked_about_with_it(model, text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    text, asked = text_file(LONG), ["ask", "-m", model, *SMALL, *REPLY, "What?", "--json", "--from"]
    for name, options in (("with", ARCHIVED), ("without", ["--policy", "keydiff", "--archive", "off"])):
        assert run_here("read", "-m", model, *SMALL, *options, "--save", name, "-f", text).returncode == 0
    report = json.loads(run_here(*asked, "with", *ARCHIVED).stdout)
    assert report["kept_tokens"] + report["recallable_tokens"] == report["tokens_seen"]
    assert (report["forgotten_tokens"], report["archive_failure"], report["recalls"]) == (0, "", 1)
    assert json.loads(run_here(*asked, "without", *ARCHIVED).stdout)["forgotten_tokens"] > 100
    assert json.loads(run_here(*asked, "with", "--policy", "keydiff", "--archive", "off").stdout)["recalls"] == 0


def test_a_disk_without_room_for_the_archive_is_found_before_the_reading(model, text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=512 << 10))
    read = ["read", "-m", model, *SMALL, "--policy", "keydiff", "-f", text_file(LONG), "--save"]
    refused = run_here(*read, "large", "--archive", "8MiB")
    assert refused.returncode == 2
    assert "has 0.5 MiB free, and the session may take " in refused.stderr
    assert "--archive off, which keeps the cells alone" in " ".join(refused.stderr.split())
    assert run_here(*read, "small", "--archive", "off").returncode == 0


@pytest.mark.parametrize("options", [[], ["--focus-on", "word3"], ["--focus-policy", "snapkv"]])
def test_ask_reads_with_its_question_and_recalls_with_it(model, text_file, options):
    asked = ["ask", "-m", model, *SMALL, *REPLY, *ARCHIVED, "-f", text_file(LONG), "What?", "--json", *options]
    report = json.loads(run_here(*asked).stdout)
    assert report["focus"] is not None
    assert report["archived_tokens"] > report["recallable_tokens"] > 0
