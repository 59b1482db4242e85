"""The order of steps that sessions share, with a cache that decodes nothing."""

from __future__ import annotations

import itertools
import re
import threading
import time

import pytest

from edgekv.binding.cache import Cache
from edgekv.sessions import steps, turn_queue

LIMIT_S = 60
BLOCK = range(32)
BLOCK_S = 32.0  # seconds of a block, if a token of a text takes one


class CountedCache:
    n_past = 0


def order_of_steps(monkeypatch, long, *others, reply_s=BLOCK_S):
    """Return the names of the calls that each step fed. The others come during the sixth step of the long text.

    long, others: tokens of each step of a call, by its name
    reply_s: seconds of a token of replies; a token of a text takes one
    """
    monkeypatch.setattr(steps, "SOON_S", 10.0 * LIMIT_S)
    queue, passed = turn_queue.TurnQueue(n_slots=1 + len(others)), [0]
    shared, names, order, they_come = steps.Steps(queue, lambda: passed[0]), {}, [], threading.Event()

    def feed_together(feeds):
        for cache, tokens, _ in feeds:
            cache.n_past += len(tokens)
        n_tokens = len(feeds[0][1])
        passed[0] += n_tokens if n_tokens > 1 else reply_s
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


def test_replies_have_as_much_time_as_a_text(monkeypatch):
    reply = ("r", [BLOCK, *[[1]] * 12])
    found = order_of_steps(monkeypatch, ("L", [BLOCK] * 10), reply, reply_s=BLOCK_S / 4)
    assert found == "L L L L L L r r r r r L r r r r L r r r r L L"


def test_each_text_leaves_replies_as_much_time_as_its_blocks_take(monkeypatch):
    others = ("r", [BLOCK, *[[1]] * 24]), ("a", [BLOCK] * 12), ("b", [BLOCK] * 12)
    found = order_of_steps(monkeypatch, ("L", [BLOCK] * 20), *others, reply_s=BLOCK_S / 8)
    beside_replies = found[: found.rindex("r")]
    between = [part.count("r") for name in "ab" for part in beside_replies.split(name)[1:-1]]
    assert len(between) >= 4
    assert all(8 <= n_tokens <= 10 for n_tokens in between), found


def test_a_short_text_goes_before_a_long_one_although_both_owe_time_to_replies(monkeypatch):
    others = ("r", [BLOCK, *[[1]] * 12]), ("s", [BLOCK] * 2)
    found = order_of_steps(monkeypatch, ("L", [BLOCK] * 10), *others, reply_s=BLOCK_S / 4)
    assert re.search("^(L ){6}(r ){0,2}s (r ){3,5}s (r )*L", found), found


def test_what_a_long_text_owes_to_replies_lets_no_further_texts_pass(monkeypatch):
    others = ("r", [BLOCK, *[[1]] * 30]), *((name, [BLOCK]) for name in "abcdef")
    found = order_of_steps(monkeypatch, ("L", [BLOCK] * 10), *others, reply_s=BLOCK_S / 16)
    passing = found.replace(" ", "").lstrip("L").partition("L")[0]
    assert 3 <= len(passing.replace("r", "")) <= 4  # the block before the reply passes, too


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
