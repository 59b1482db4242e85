"""The choice of checkpoints under a cap: few old ones are kept, and more new ones."""

from __future__ import annotations

import itertools

import pytest

from edgekv.sessions.checkpoints import MAX_CHECKPOINTS, Checkpoint, Checkpoints
from edgekv.sessions.snapshot import Said
from edgekv.sessions.stored_snapshot import StoredSnapshot


class FakeBlockLoop:
    def __init__(self, n_bytes):
        self.snapshot_bytes = n_bytes

    def write(self, file):
        file.write(b"cells")


def checkpoint(n_past, n_bytes=100):
    return Checkpoint(n_past, Said("assistant"), StoredSnapshot(None, FakeBlockLoop(n_bytes)))


@pytest.fixture
def open_checkpoints():
    made = []

    def make(max_bytes):
        made.append(Checkpoints(max_bytes))
        return made[-1]

    yield make
    for checkpoints in made:
        checkpoints.close()


def test_all_stay_while_there_is_room(open_checkpoints):
    checkpoints = open_checkpoints(1000)
    for n in range(1, 11):
        checkpoints.add(checkpoint(10 * n))
    assert checkpoints.positions == [10 * n for n in range(1, 11)]
    assert checkpoints.before(9) is None
    assert [checkpoints.before(n).n_past for n in (10, 55, 1000)] == [10, 50, 100]


@pytest.mark.parametrize("n_kept", [1, 2, 5, 10])
def test_they_lie_denser_the_newer_they_are(open_checkpoints, n_kept):
    checkpoints = open_checkpoints(100 * n_kept)
    for n in range(1, 1001):
        checkpoints.add(checkpoint(10 * n))
        assert checkpoints.nbytes <= 100 * n_kept
        assert checkpoints.positions[-1] == 10 * n  # what /undo goes back to
    positions = [0, *checkpoints.positions]
    assert len(positions) == n_kept + 1
    if n_kept > 2:
        gaps = [b - a for a, b in itertools.pairwise(positions)]
        assert gaps == sorted(gaps, reverse=True)
        assert positions[-2] == 9990  # the turn before


def test_their_number_is_limited_as_well(open_checkpoints):
    checkpoints = open_checkpoints(1 << 40)
    for n in range(1, 1000):
        checkpoints.add(checkpoint(n))
    assert len(checkpoints.positions) == MAX_CHECKPOINTS


def test_the_files_of_those_that_go_are_closed(open_checkpoints):
    checkpoints, made = open_checkpoints(300), [checkpoint(n) for n in (5, 6, 7, 8, 3)]
    for each in made:
        checkpoints.add(each)
    assert checkpoints.positions == [3]  # a new one takes the place of those after it
    assert [each.stored.file.closed for each in made] == [True, True, True, True, False]
    checkpoints.add(too_large := checkpoint(9, 301))
    assert too_large.stored.file.closed
    assert checkpoints.positions == [3]
