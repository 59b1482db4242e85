"""Ends of a reply, against definitions that look at the whole of it."""

from __future__ import annotations

import random

import pytest

from edgekv.errors import CeilingExceededError
from edgekv.generation.stats import Stats
from edgekv.generation.stopping import LONGEST_CYCLE, SHORTEST_LOOP, LoopDetector, StopTexts, until_stop


def loops(said):
    """The definition: the last tokens are one sequence of 1 to 60, three times or more, and at least 60 in all."""
    for length in range(1, 61):
        n = max(3 * length, 60)
        tail = said[-n:]
        if len(tail) == n and all(tail[i] == tail[i - length] for i in range(length, n)):
            return True
    return False


def first_loop(said):
    """Tokens said when a reply is found to loop; None = never."""
    loops = LoopDetector()
    return next((i for i, token in enumerate(said, start=1) if loops.loops_after(token)), None)


def test_a_loop_is_found_where_it_closes():
    rng = random.Random(0)
    n_found = 0
    for _ in range(150):
        length, before = rng.randint(1, 70), rng.randint(0, 90)
        cycle = [rng.randrange(3) for _ in range(length)]
        said = [rng.randrange(3) for _ in range(before)] + cycle * rng.randint(2, 5)
        if rng.random() < 0.5:
            said[rng.randrange(len(said))] = 7
        expected = next((n for n in range(1, len(said) + 1) if loops(said[:n])), None)
        assert first_loop(said) == expected
        n_found += expected is not None
    assert 30 < n_found < 120


@pytest.mark.parametrize(("length", "n"), [(1, 60), (3, 60), (7, 60), (20, 60), (21, 63), (60, 180), (61, None)])
def test_a_circle_is_three_rounds_of_at_most_60_tokens_and_60_tokens_in_all(length, n):
    assert first_loop(list(range(length)) * 100) == n


def test_what_is_said_again_now_and_then_is_no_loop():
    rng = random.Random(1)
    refrain = list(range(100, 140))
    song = [token for _ in range(20) for token in (*refrain, *refrain, *(rng.randrange(1000) for _ in range(9)))]
    rows = [token for i in range(200) for token in (5, 5, 5, 5, 5, 5, 5, 5, i + 10, 6)]
    assert first_loop(song) is None
    assert first_loop(rows) is None
    assert first_loop([9] * (SHORTEST_LOOP - 1) + [8]) is None
    assert LONGEST_CYCLE == SHORTEST_LOOP == 60  # the documentation names 60


def shown(pieces, stops):
    """Return the shown pieces of a text that comes in pieces, and the stop text that ended it; None = none."""
    stats = Stats()
    seen = list(until_stop(pieces, stops, stats))
    assert bool(stats.stop_text) == (stats.finish_reason == "stop")
    return seen, stats.stop_text or None


def first_stop(text, stops):
    """The definition: the text before the first stop text that is complete, of several the longest, and that one."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


def test_a_text_ends_before_a_stop_text_however_it_is_cut():
    rng = random.Random(0)
    n_stopped = 0
    for _ in range(2000):
        text = "".join(rng.choice("abc") for _ in range(rng.randint(0, 30)))
        stops = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 5))) for _ in range(rng.randint(0, 3))]
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 12)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        expected = first_stop(text, stops)
        seen, stop = shown(pieces, stops)
        assert ("".join(seen), stop) == expected
        n_stopped += stop is not None
    assert 500 < n_stopped < 1900


def test_only_a_possible_beginning_of_a_stop_text_is_held_back():
    text = StopTexts(("STOP", "\n\n"))
    assert [text.push(piece) for piece in ("one", " S", "T", "AY", "\n", "two", "S", "S")] == [
        *("one", " ", "", "STAY", "", "\ntwo", "", "S"),
    ]
    assert not text.found
    assert text.rest() == "S"
    assert text.rest() == ""


def test_nothing_is_held_back_without_stop_texts():
    assert shown(["a", "", "b"], ()) == (["a", "", "b", ""], None)


def test_what_is_held_back_is_shown_before_an_error():
    def pieces():
        yield "one S"
        raise CeilingExceededError("too much", planned_bytes=1, measured_bytes=3, ceiling_bytes=2)

    shown = until_stop(pieces(), ("STOP",), Stats())
    assert (next(shown), next(shown)) == ("one ", "S")
    with pytest.raises(CeilingExceededError):
        next(shown)
