"""The order of steps that sessions share, with a cache that decodes nothing."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from edgekv.binding.cache import Cache
from edgekv.sessions import steps, turn_queue

LIMIT_S = 60
BLOCK = range(32)


class CountedCache:
    n_past = 0


def order_of_steps(monkeypatch, long, *others):
    """Return the names of the calls that each step fed. The others come during the sixth step of the long text.

    long, others: tokens of each step of a call, by its name
    """
    monkeypatch.setattr(steps, "SOON_S", 10.0 * LIMIT_S)
    queue = turn_queue.TurnQueue(n_slots=1 + len(others))
    shared, names, order, they_come = steps.Steps(queue), {}, [], threading.Event()

    def feed_together(feeds):
        for cache, tokens, _ in feeds:
            cache.n_past += len(tokens)
        order.append("".join(sorted(names[cache] for cache, _, _ in feeds)))
        if len(order) == 6:
            they_come.set()
            until = time.monotonic() + LIMIT_S
            while len(queue._waiting) < len(others):
                assert time.monotonic() < until
                time.sleep(0.001)

    monkeypatch.setattr(Cache, "feed_together", staticmethod(feed_together))

    def call(name, feeds):
        cache = CountedCache()
        names[cache] = name
        if name != long[0]:
            assert they_come.wait(LIMIT_S)
        with queue.ticket(cache) as ticket:
            assert ticket.enter()
            for tokens in feeds:
                shared.feed(cache, tokens, True)

    threads = [threading.Thread(target=call, args=feeds, daemon=True) for feeds in (long, *others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    return " ".join(order)


@pytest.mark.parametrize("n_tokens", [1, 2, 32])
def test_a_short_text_goes_before_the_blocks_of_a_long_one(monkeypatch, n_tokens):
    short = [BLOCK, range(n_tokens)]
    assert order_of_steps(monkeypatch, ("L", [BLOCK] * 8), ("s", short)) == "L L L L L L s s L L"


def test_a_long_text_lets_a_few_steps_of_others_pass(monkeypatch):
    found = order_of_steps(monkeypatch, ("L", [BLOCK] * 12), ("m", [BLOCK] * 6))
    assert found == "L L L L L L m m m m L m m L L L L L"


def test_texts_of_which_as_much_was_read_take_turns(monkeypatch):
    found = order_of_steps(monkeypatch, ("L", [BLOCK] * 8), ("a", [BLOCK] * 3), ("b", [BLOCK] * 3))
    one, other = sorted("ab", key=found.index)  # whichever came first
    assert found == f"L L L L L L {one} {other} {one} {other} L {one} {other} L"


def test_a_reply_waits_for_one_step_of_a_text(monkeypatch):
    reply = ("r", [BLOCK, *[[1]] * 6])
    found = order_of_steps(monkeypatch, ("L", [BLOCK] * 10), reply, ("s", [BLOCK] * 3)).split()
    replying = found[found.index("r") : len(found) - found[::-1].index("r")]
    assert replying.count("r") == 7
    assert all("r" in pair for pair in itertools.pairwise(replying[1:]))


def test_a_second_interrupt_leaves_no_feed_to_the_steps_of_others(monkeypatch):
    """The first comes while another thread computes a step, the second while the end of that step is waited for."""
    queue = turn_queue.TurnQueue(n_slots=2)
    shared, cache, other, fed = steps.Steps(queue), CountedCache(), CountedCache(), []
    n_waits = itertools.count(1)

    def wait(timeout=None):
        if next(n_waits) < 3:
            raise KeyboardInterrupt
        queue.stepping = False

    with queue.ticket(cache) as ticket:
        assert ticket.enter()
        queue.stepping = True
        with monkeypatch.context() as patch:
            patch.setattr(queue.changed, "wait", wait)
            with pytest.raises(KeyboardInterrupt):
                shared.feed(cache, BLOCK, True)
        queue.stepping = False

    def feed():
        with queue.ticket(other) as ticket:
            assert ticket.enter()
            shared.feed(other, BLOCK, True)

    def decode(feeds):
        for cache, *_ in feeds:
            cache.n_past += len(BLOCK)
            fed.append(cache)

    monkeypatch.setattr(Cache, "feed_together", staticmethod(decode))
    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert fed == [other]
