"""The order of the batches of several replies, without a cache or a thread."""

from __future__ import annotations

import itertools
import re

import pytest

from edgekv.cells.feeds import Feed
from edgekv.loop.batch_scheduler import Scheduler, Share, WaitingFeed

BLOCK = range(32)
BLOCK_S = 32.0  # seconds of a block, if a token of a text takes one


def order_of_batches(long, *others, reply_s=BLOCK_S):
    """Return the names of the replies that each batch fed. The others come during the sixth batch of the long text.

    long, others: tokens of each feed of a reply, by its name
    reply_s: seconds of a token of replies; a token of a text takes one
    """
    scheduler, order, waiting = Scheduler(), [], {}

    def come(name, feeds):
        coming = iter(feeds)
        ask(name, coming, Share())

    def ask(name, coming, share):
        tokens = next(coming, None)
        if tokens is not None:
            waiting[WaitingFeed(Feed(None, tokens), share)] = name, coming

    come(*long)
    while waiting:
        batch = scheduler.next(list(waiting))
        n_tokens = len(batch[0].feed.tokens)
        order.append("".join(sorted(waiting[it][0] for it in batch)))
        scheduler.note(batch, list(waiting), n_tokens if n_tokens > 1 else reply_s)
        for it in batch:
            ask(*waiting.pop(it), it.share)
        if len(order) == 6:
            for reply in others:
                come(*reply)
    return " ".join(order)


@pytest.mark.parametrize("n_tokens", [1, 2, 32])
def test_a_short_text_goes_before_the_blocks_of_a_long_one(n_tokens):
    short = [BLOCK, range(n_tokens)]
    assert order_of_batches(("L", [BLOCK] * 8), ("s", short)) == "L L L L L L s s L L"


def test_a_long_text_lets_a_few_batches_of_others_pass():
    found = order_of_batches(("L", [BLOCK] * 12), ("m", [BLOCK] * 6))
    assert found == "L L L L L L m m m m L m m L L L L L"


def test_texts_of_which_as_much_was_read_take_turns():
    found = order_of_batches(("L", [BLOCK] * 8), ("a", [BLOCK] * 3), ("b", [BLOCK] * 3))
    assert found == "L L L L L L a b a b L a b L"


def test_a_reply_waits_for_one_batch_of_a_text():
    reply = ("r", [BLOCK, *[[1]] * 6])
    found = order_of_batches(("L", [BLOCK] * 10), reply, ("s", [BLOCK] * 3)).split()
    replying = found[found.index("r") : len(found) - found[::-1].index("r")]
    assert replying.count("r") == 7
    assert all("r" in pair for pair in itertools.pairwise(replying[1:]))


def test_replies_have_as_much_time_as_a_text():
    reply = ("r", [BLOCK, *[[1]] * 12])
    found = order_of_batches(("L", [BLOCK] * 10), reply, reply_s=BLOCK_S / 4)
    assert found == "L L L L L L r r r r r L r r r r L r r r r L L"


def test_each_text_leaves_replies_as_much_time_as_its_blocks_take():
    others = ("r", [BLOCK, *[[1]] * 24]), ("a", [BLOCK] * 12), ("b", [BLOCK] * 12)
    found = order_of_batches(("L", [BLOCK] * 20), *others, reply_s=BLOCK_S / 8)
    beside_replies = found[: found.rindex("r")]
    between = [part.count("r") for name in "ab" for part in beside_replies.split(name)[1:-1]]
    assert len(between) >= 4
    assert all(8 <= n_tokens <= 10 for n_tokens in between), found


def test_a_short_text_goes_before_a_long_one_although_both_owe_time_to_replies():
    others = ("r", [BLOCK, *[[1]] * 12]), ("s", [BLOCK] * 2)
    found = order_of_batches(("L", [BLOCK] * 10), *others, reply_s=BLOCK_S / 4)
    assert re.search("^(L ){6}(r ){0,2}s (r ){3,5}s (r )*L", found), found


def test_what_a_long_text_owes_to_replies_lets_no_further_texts_pass():
    others = ("r", [BLOCK, *[[1]] * 30]), *((name, [BLOCK]) for name in "abcdef")
    found = order_of_batches(("L", [BLOCK] * 10), *others, reply_s=BLOCK_S / 16)
    passing = found.replace(" ", "").lstrip("L").partition("L")[0]
    assert 3 <= len(passing.replace("r", "")) <= 4  # the block before the reply passes, too


def test_a_feed_that_failed_with_others_comes_alone():
    scheduler, waiting = Scheduler(), [WaitingFeed(Feed(None, [1]), Share()) for _ in range(3)]
    assert scheduler.next(waiting) == waiting
    for it in waiting:
        it.has_failed = True
    assert scheduler.next(waiting) == waiting[:1]
