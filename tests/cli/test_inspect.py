"""`edgekv inspect`: what it prints, and the page as a browser shows it."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from browser import chromium, opened
from command import SMALL, run_here, words

import edgekv
from edgekv.inspection import observe, render_page

HOSTILE = (
    "</div><script>document.title = 'taken over'</script><img src='http://edgekv.invalid/x.png'> "
    '& "q" 漢字 \x1b[31m\n'
)


def inspect(*arguments, **environment):
    """Runs the command in a terminal of 80 columns, without colours unless the environment asks for them."""
    return run_here("inspect", *SMALL, *arguments, COLUMNS="80", **environment)


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_layer=3, n_ctx_train=2048)


@pytest.fixture(scope="module")
def book(text_file):
    return text_file(HOSTILE + words(60))


@pytest.fixture(scope="module")
def asked(model, book):
    """The arguments of one inspection."""
    return ["-m", model, "-f", book, "What?", "--policy", "snapkv+ada"]


@pytest.fixture(scope="module")
def report(asked, tmp_path_factory):
    """Return the inspection's JSON, with the path of the page that it writes."""
    page = tmp_path_factory.mktemp("page") / "page.html"
    result = inspect(*asked, "--json", "--html", page)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout) | {"page": page}


def test_json_is_one_object_of_plain_figures(report):
    assert set(report) - {"page"} == {
        *("model", "policy", "focus", "budget_cells", "block", "kv_type", "prompt_tokens", "evictions", "repositions"),
        *("peak_rss_bytes", "question", "answer", "budgets", "pieces", "counts", "heads", "keys"),
        "archived",
    }
    assert (report["policy"], report["budget_cells"], report["answer"]) == ("snapkv+ada", 64, "")
    assert HOSTILE in "".join(report["pieces"])
    assert len(report["pieces"]) == len(report["counts"]) == report["prompt_tokens"]
    counts = [0] * len(report["counts"])
    for head in report["heads"]:
        held = [p for start, end in head["kept"] for p in range(start, end)]
        assert len(held) == head["n_kept"]
        for p in held:
            counts[p] += 1
    assert counts == report["counts"]
    assert {len(layer) for layer in report["budgets"]} == {2}
    assert len({n for layer in report["budgets"] for n in layer}) > 1  # heads share their cells
    assert [(study["layer"], study["head"]) for study in report["keys"]] == [(0, 0), (1, 1), (2, 0)]
    for study in report["keys"]:
        assert study["n_kept"] + study["n_evicted"] == len(study["points"]) == len(report["pieces"])
        assert study["log_det"]["kept"] < study["log_det"]["full"]


def test_a_terminal_without_colours_shows_marks_below_the_text(asked, report):
    result = inspect(*asked, "--layer", 1)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "snapkv+ada, focus snapkv+ada; budget 64, " in lines[0]
    assert f"{report['evictions']} evictions; of {len(report['pieces']):,} tokens 6 heads kept" in lines[0]
    assert "\x1b" not in result.stdout  # neither styles nor what the text would make a terminal do
    assert "\N{REPLACEMENT CHARACTER}[31m" in result.stdout
    held = {f"{head['layer']}, {head['head']}": head["n_kept"] for head in report["heads"]}
    for name in ("1, 0", "1, 1"):
        assert any(line.strip().startswith(name) and line.endswith(f" {held[name]:,}") for line in lines)
    for layer in (0, 2):
        few, many = sorted(head["n_kept"] for head in report["heads"] if head["layer"] == layer)
        ends = f" {few:,}" if few == many else f" {few:,} to {many:,}"
        assert any(line.startswith(f"{layer:>7} ") and line.endswith(ends) for line in lines)
    assert max(map(len, lines[2:])) <= 80


def test_the_newest_tokens_are_kept_by_every_head_where_no_probe_scores(asked):
    lines = inspect(*asked, "--no-focus", "--raw").stdout.splitlines()
    below = lines.index(next(line for line in lines if "word59" in line)) + 1
    assert set(lines[below]) == {"█"}


def test_a_terminal_with_colours_shades_the_text_itself(asked):
    result = inspect(*asked, "--no-keys", FORCE_COLOR="1", COLORTERM="truecolor", TERM="xterm-256color")
    assert result.returncode == 0, result.stderr
    assert "\x1b[30;48;2;255;176;0m" in result.stdout  # kept by all
    assert "\x1b[2m" in result.stdout  # kept by none
    assert "log det" not in result.stdout


def test_a_text_alone_and_an_answer(model, book):
    plain = json.loads(inspect("-m", model, "-f", book, "--no-keys", "--json").stdout)
    assert "".join(plain["pieces"]).endswith(book.read_text(encoding="utf-8"))
    assert (plain["focus"], plain["keys"]) == (None, [])
    answered = json.loads(inspect("-m", model, "What?", "--max-tokens", 9, "--json").stdout)
    assert answered["answer"]
    assert len(answered["pieces"]) == answered["prompt_tokens"] + 8  # the last one is said, but not fed


def test_the_page_shows_the_question_as_text(model, asked, report, tmp_path):
    assert "Question: <q>What?</q>" in report["page"].read_text(encoding="utf-8")
    assert report["question"] == "What?"
    page = tmp_path / "page.html"
    assert inspect("-m", model, "--no-keys", "--html", page, "<b>What?").returncode == 0
    assert "Question: <q>&lt;b&gt;What?</q>" in page.read_text(encoding="utf-8")


def test_what_is_refused(model, book, tmp_path):
    for message, arguments in {
        "--isolated keeps model and cells in another process": ["--isolated", "What?"],
        "more than --longest 100": ["-f", book, "--longest", 100],
        "give another --html": ["What?", "--html", tmp_path],
    }.items():
        result = inspect("-m", model, *arguments)
        assert result.returncode == 2, result.stderr
        assert message in result.stderr
        assert result.stdout == ""


# ---- the page, in a browser ----


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


SHADED = """() => [...document.querySelectorAll(".text span")].filter(
    token => getComputedStyle(token).backgroundColor !== "rgba(0, 0, 0, 0)").length"""


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [{}, {"java_script_enabled": False}, {"color_scheme": "dark"}], ids=str)
def test_a_browser_shows_the_text_and_shades_what_was_kept(browser, report, settings):
    with opened(browser, report["page"].as_uri(), **settings) as page:
        assert page.title().startswith("What tiny-")
        assert page.locator(".text").evaluate("text => text.textContent") == "".join(report["pieces"])
        assert page.locator(".text span").count() == len(report["pieces"])
        assert page.evaluate(SHADED) == sum(count > 0 for count in report["counts"])
        assert page.locator("path").count() == len(report["heads"])
        assert page.locator("select").is_visible() == settings.get("java_script_enabled", True)
        colours = page.evaluate(
            "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor] }"
        )
        brightness = [sum(map(int, colour[4:-1].split(","))) for colour in colours]
        assert (brightness[0] > brightness[1]) == ("color_scheme" in settings)


@pytest.mark.nightly
def test_text_stays_text(browser, model, tmp_path):
    """Whole tokens of markup, which no tokenizer of a tiny model has, and a model whose name is some."""
    named = shutil.copy(model, tmp_path / "<i>&amp;.gguf")
    with edgekv.Runtime(named, memory="4GiB", budget=64, block=32, threads=1) as rt:
        found = observe(rt, "What?", keys=False)
    pieces = (HOSTILE, *found.kept.pieces[1:])
    path = tmp_path / "page.html"
    page_text = render_page(dataclasses.replace(found, kept=dataclasses.replace(found.kept, pieces=pieces)))
    path.write_text(page_text, encoding="utf-8")
    with opened(browser, path.as_uri()) as page:
        assert page.locator(".text").evaluate("text => text.textContent") == "".join(pieces)
        assert page.title() == "What <i>&amp;.gguf kept"
        assert page.locator("h1").text_content() == page.title()
        assert page.locator("img, i").count() == 0


@pytest.mark.nightly
def test_choosing_a_head_shades_what_that_one_kept(browser, report):
    with opened(browser, report["page"].as_uri()) as page:
        for i, head in enumerate(report["heads"]):
            page.locator("select").select_option(
                label=f"layer {head['layer']}, head {head['head']}: {head['n_kept']} kept"
            )
            assert page.evaluate(SHADED) == head["n_kept"]
            held = page.evaluate(
                "() => [...document.querySelectorAll('.text span')].map(t => t.className.includes('held'))"
            )
            assert [p for p, is_held in enumerate(held) if is_held] == [
                p for start, end in head["kept"] for p in range(start, end)
            ]
            assert page.locator("path.chosen").count() == 1
            page.locator("path").nth(i).dispatch_event("click")
            assert page.evaluate(SHADED) == head["n_kept"]
        page.locator("select").select_option(label="all heads")
        assert page.evaluate(SHADED) == sum(count > 0 for count in report["counts"])
