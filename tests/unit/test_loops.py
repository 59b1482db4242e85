"""Loops of a reply, against a definition that looks at the whole of it, and real texts, which are none."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgekv.generation import loops
from edgekv.generation.loops import NEAR_SHORTEST, SHORTEST_LOOP, LoopDetector

ROOT = Path(__file__).parents[2]
NOVELS = ROOT.parent / "shared" / "data"
_WORD = re.compile(r" ?\w{1,6}|\s+|([^\w\s])\1*")


def tokens_of(text):
    """Cut a text as a vocabulary does: words in pieces, and rows of one mark as one token."""
    ids = {}
    return [ids.setdefault(found.group(), len(ids)) for found in _WORD.finditer(text)]


def definition(said):
    """The last tokens are one sequence, three times or more, and at least 60 in all."""
    for length in range(1, len(said) // 3 + 1):
        n = max(3 * length, 60)
        tail = said[-n:]
        if len(tail) == n and tail[length:] == tail[:-length]:
            return True
    return False


def first_loop(said):
    """Tokens said when a reply is found to loop; None = never."""
    detector = LoopDetector()
    return next((i for i, token in enumerate(said, start=1) if detector.loops_after(token)), None)


def test_a_loop_is_found_where_it_closes():
    rng = random.Random(0)
    n_found = 0
    for _ in range(100):
        length, before = rng.randint(1, 110), rng.randint(0, 90)
        cycle = [rng.randrange(9) for _ in range(length)]
        said = [rng.randrange(9) for _ in range(before)] + cycle * rng.randint(2, 5)
        if rng.random() < 0.5:
            said[rng.randrange(len(said))] = 10
        expected = next((n for n in range(1, len(said) + 1) if definition(said[:n])), None)
        assert first_loop(said) == expected
        n_found += expected is not None
    assert 30 < n_found < 80


@pytest.mark.parametrize(("length", "n"), [(1, 60), (3, 60), (7, 60), (20, 60), (21, 63), (61, 183), (3000, 9000)])
def test_a_loop_is_three_rounds_and_60_tokens_in_all(length, n):
    assert first_loop(list(range(length)) * 100) == n


def test_it_is_found_after_a_long_reply_whose_beginning_is_forgotten(monkeypatch):
    monkeypatch.setattr(loops, "REMEMBERED", 4096)
    said = [token for i in range(3000) for token in (i, i + 1)]
    cycle = list(range(10_000, 10_100))
    assert first_loop(said + cycle * 9) == len(said) + 300
    assert first_loop(said) is None


@pytest.mark.parametrize("length", [70, 120, 500])
def test_rounds_that_differ_in_a_word_are_a_loop(length):
    """A paragraph of which each round has another word, in another place."""
    rng = random.Random(length)
    paragraph = list(range(length))
    said = []
    for i in range(14):
        said += paragraph
        said[-rng.randrange(1, length)] = 1000 + i
    found = first_loop(said)
    assert found is not None
    assert NEAR_SHORTEST <= found <= 9 * length


@pytest.mark.parametrize("n_before", [700, 900, 1000])
def test_a_loop_is_found_where_older_tokens_are_forgotten_within_it(monkeypatch, n_before):
    said = [*range(70)] * 14
    for i in range(14):
        said[70 * i + 5 * i] = 1000 + i  # a word of each round differs
    expected = first_loop(said)
    monkeypatch.setattr(loops, "REMEMBERED", 1024)
    assert first_loop([*range(5000, 5000 + n_before), *said]) == n_before + expected


def test_every_process_finds_a_loop_at_the_same_token():
    """Whatever the seed of Python's own hashes: a reply is cut at one place."""
    program = (
        "import random; from edgekv.generation.loops import LoopDetector; rng = random.Random(1); said = []\n"
        "for i in range(14): said += range(70); said[-rng.randrange(1, 70)] = 1000 + i\n"
        "detector = LoopDetector(); print([i for i, token in enumerate(said) if detector.loops_after(token)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert len(found) == 1
    assert found != {"[]\n"}


def test_two_lines_in_turn_are_a_loop():
    lines = [list(range(120)), list(range(200, 320))]
    assert first_loop((lines[0] + lines[1]) * 6) == 3 * 240


def test_what_is_said_again_now_and_then_is_no_loop():
    rng = random.Random(1)
    refrain = list(range(100, 140))
    song = [token for _ in range(20) for token in (*refrain, *refrain, *(rng.randrange(1000) for _ in range(9)))]
    rows = [token for i in range(200) for token in (5, 5, 5, 5, 5, 5, 5, 5, i + 10, 6)]
    lines = [token for i in range(60) for token in (*range(30), 1000 + i)]  # a long line whose number counts upwards
    assert first_loop(song) is None
    assert first_loop(rows) is None
    assert first_loop(lines) is None
    assert first_loop([9] * (SHORTEST_LOOP - 1) + [8]) is None
    assert SHORTEST_LOOP == 60  # the documentation names 60


def test_lists_tables_and_code_are_no_loops():
    """Pages of this repository, with their tables and lists, and its code. Each is read as if it were one reply."""
    folders = (
        ("docs", "*.md"),
        ("cli", "*.py"),
        ("models", "*.py"),
        ("edgekv/planning", "*.py"),
        ("native/src", "*.h"),
    )
    files = [path for folder, pattern in folders for path in sorted((ROOT / folder).rglob(pattern))]
    assert len(files) > 100
    for path in files:
        assert first_loop(tokens_of(path.read_text(encoding="utf-8"))) is None, path


def test_tables_of_numbers_are_no_loops():
    """Rows that differ in their figures alone, with hardly a word of their own."""
    rng = random.Random(2)
    table = "".join(f"| {i} | {rng.randrange(10)} | {rng.randrange(10)} | yes | no |\n" for i in range(200))
    items = "".join(
        f'{{"id": {i}, "name": "user", "active": true, "roles": ["reader", "writer"]}},\n' for i in range(200)
    )
    calendar = "".join(
        f"- Day {i}: walk for half an hour, drink water, and sleep for eight hours.\n" for i in range(90)
    )
    for text in (table, items, calendar):
        assert first_loop(tokens_of(text)) is None


@pytest.mark.skipif(not NOVELS.is_dir(), reason="the novels are not here")
def test_novels_are_no_loops():
    for path in sorted(NOVELS.glob("*.txt")):
        assert first_loop(tokens_of(path.read_text(encoding="utf-8")[:300_000])) is None, path
