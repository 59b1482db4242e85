"""Ends of a reply, against definitions that look at the whole of it."""

from __future__ import annotations

import random

import pytest

from edgekv.errors import CeilingExceededError, GrammarError
from edgekv.generation.stats import Stats
from edgekv.generation.stopping import StopTexts, until_stop


def shown(pieces, stops):
    """Return the shown pieces of a text that comes in pieces, and the stop text that ended it; None = none."""
    stats = Stats()
    seen = list(until_stop(pieces, StopTexts(stops), stats))
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


@pytest.mark.parametrize(
    "error",
    [
        CeilingExceededError("too much", planned_bytes=1, measured_bytes=3, ceiling_bytes=2),
        GrammarError("grammar became too complex"),
    ],
    ids=["ceiling", "grammar"],
)
def test_what_is_held_back_is_shown_before_an_error(error):
    def pieces():
        yield "one S"
        raise error

    shown = until_stop(pieces(), StopTexts(("STOP",)), Stats())
    assert (next(shown), next(shown)) == ("one ", "S")
    with pytest.raises(type(error)):
        next(shown)
