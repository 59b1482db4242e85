"""Requests that begin alike go to one worker, as long as others have work."""

from __future__ import annotations

import itertools
import threading
from collections import deque

from edgekv.batch.sharding import Shard, ShardQueue


def shard(n_shared, *numbers, own=10):
    return Shard(n_shared, deque((number, own) for number in numbers))


def test_a_pile_stays_with_its_worker():
    queue = ShardQueue([shard(100, 1, 2, 3), shard(100, 4, 5), shard(0, 6)])
    assert [queue.take(worker) for worker in (0, 1, 0, 1, 0, 1)] == [1, 4, 2, 5, 3, 6]
    assert queue.take(0) is queue.take(1) is None


def test_whoever_has_nothing_left_helps_where_that_pays():
    """Reading 100 tokens once more pays where another worker has more than 200 to go."""
    queue = ShardQueue([shard(100, *range(30)), shard(100, *range(30, 50), own=5)])
    assert queue.take(0) == 0
    assert queue.take(1) == 30
    taken = [queue.take(1) for _ in range(25)]
    assert taken[:19] == list(range(31, 50))  # its own first
    assert taken[19:] == list(range(1, 7))
    rest = [queue.take(0) for _ in range(23)]
    assert rest == list(range(7, 30))
    assert queue.take(0) is None


def test_nobody_helps_with_the_little_that_is_left():
    queue = ShardQueue([shard(100, 1, 2, 3)])
    assert queue.take(0) == 1
    assert queue.take(1) is None
    assert [queue.take(0), queue.take(0)] == [2, 3]


def test_each_is_dealt_once_whoever_asks():
    queue = ShardQueue(shard(i % 3 * 50, *range(i * 100, i * 100 + 100)) for i in range(20))
    taken = [[] for _ in range(4)]

    def work(worker):
        while (number := queue.take(worker)) is not None:
            taken[worker].append(number)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*taken)) == list(range(2000))
