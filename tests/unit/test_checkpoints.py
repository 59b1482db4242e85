"""The choice of checkpoints under a cap: few old ones are kept, and more new ones."""

from __future__ import annotations

import itertools
import os

import pytest
from open_files import LISTS_FILES, n_open

from edgekv.conversations.checkpoints import MAX_CHECKPOINTS, Checkpoints
from edgekv.generation.turn_state import Dialogue
from edgekv.store.block_file import BLOCK_BYTES


class FakeBlockLoop:
    def __init__(self, n_bytes):
        self.stored_bytes = n_bytes

    def mark(self):
        return None


def add(checkpoints, n_past, n_bytes=100):
    checkpoints.add(n_past, Dialogue("assistant"), FakeBlockLoop(n_bytes))


def write_cells(block_loop, file, archived):
    file.write(b"cells")


@pytest.fixture(autouse=True)
def written(monkeypatch):
    monkeypatch.setattr("edgekv.conversations.stored_snapshot.write_cells", write_cells)


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
        add(checkpoints, 10 * n)
    assert checkpoints.positions == [10 * n for n in range(1, 11)]
    assert checkpoints.before(9) is None
    assert [checkpoints.before(n).n_past for n in (10, 55, 1000)] == [10, 50, 100]


@pytest.mark.parametrize("n_kept", [1, 2, 5, 10])
def test_they_lie_denser_the_newer_they_are(open_checkpoints, n_kept):
    checkpoints = open_checkpoints(100 * n_kept)
    for n in range(1, 1001):
        add(checkpoints, 10 * n)
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
        add(checkpoints, n)
    assert len(checkpoints.positions) == MAX_CHECKPOINTS


def test_a_new_one_takes_the_place_of_those_after_it(open_checkpoints):
    checkpoints = open_checkpoints(300)
    for n in (5, 6, 7, 8, 3):
        add(checkpoints, n)
    assert checkpoints.positions == [3]
    add(checkpoints, 9, 301)  # too large
    assert checkpoints.positions == [3]


def test_one_that_cannot_be_written_leaves_the_others(open_checkpoints, monkeypatch):
    checkpoints = open_checkpoints(300)
    add(checkpoints, 5)

    def failing(block_loop, file, archived):
        write_cells(block_loop, file, archived)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgekv.conversations.stored_snapshot.write_cells", failing)
    with pytest.raises(OSError, match="No space"):
        add(checkpoints, 5)
    assert checkpoints.positions == [5]
    checkpoints.newest.stored.file.seek(0)
    assert checkpoints.newest.stored.file.read(5) == b"cells"


def test_what_goes_makes_room_in_the_file(open_checkpoints):
    """The file is as long as those that were there at a time, and one that is just added."""
    checkpoints = open_checkpoints(300)
    for n in range(1, 100):
        add(checkpoints, n)
    assert os.fstat(checkpoints._file.file.fileno()).st_size <= 4 * BLOCK_BYTES


@LISTS_FILES
def test_all_of_them_take_one_file_until_they_are_closed(tmp_path):
    every = [Checkpoints(1 << 40, str(tmp_path)) for _ in range(3)]
    assert n_open(tmp_path) == 0
    for checkpoints, n in itertools.product(every, range(1, 2 * MAX_CHECKPOINTS)):
        add(checkpoints, n)
    assert n_open(tmp_path) == len(every)
    for checkpoints in every:
        checkpoints.close()
    assert n_open(tmp_path) == 0
