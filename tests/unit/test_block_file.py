"""Files within one file: each is read and written as if it was alone, and their blocks are used again."""

from __future__ import annotations

import io
import os
import random

import pytest
from open_files import LISTS_FILES, n_open

from edgekv.memory.raw_files import read_all, write_all
from edgekv.store.block_file import BLOCK_BYTES, BlockFile

SIZES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES // 2)


@pytest.fixture
def whole():
    whole = BlockFile(None)
    yield whole
    whole.close()


def size_of(whole):
    return os.fstat(whole.file.fileno()).st_size


def content(part):
    """Return all of a part."""
    data = bytearray(part.seek(0, os.SEEK_END))
    part.seek(0)
    assert read_all(part, memoryview(data))
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_parts_are_read_and_written_as_files_are(whole, seed):
    """Any part at any place, with others between; some go, and new ones take their blocks."""
    rng = random.Random(seed)
    pairs = [(whole.part(), io.BytesIO()) for _ in range(3)]
    for _ in range(100):
        i = rng.randrange(len(pairs))
        part, plain = pairs[i]
        size = len(plain.getvalue())
        act = rng.choice(["write", "write", "read", "seek", "replace"])
        if act == "write":
            data = rng.randbytes(rng.choice(SIZES))
            for file in (part, plain):
                write_all(file, memoryview(data))
        elif act == "read":
            n = rng.choice(SIZES)
            assert part.read(n) == plain.read(n)
        elif act == "seek":
            at, whence = rng.choice([(rng.randint(0, size), os.SEEK_SET), (-rng.randint(0, size), os.SEEK_END)])
            assert part.seek(at, whence) == plain.seek(at, whence)
        else:
            part.close()
            pairs[i] = whole.part(), io.BytesIO()
        assert pairs[i][0].seek(0, os.SEEK_CUR) == pairs[i][1].tell()
    assert [content(part) for part, _ in pairs] == [plain.getvalue() for _, plain in pairs]


def test_nothing_is_read_after_the_end(whole):
    part = whole.part()
    assert part.read(5) == b""
    write_all(part, memoryview(b"12345"))
    part.seek(3)
    assert part.read(5) == b"45"
    part.seek(9)
    assert part.read(5) == b""
    assert not read_all(part, memoryview(bytearray(1)))


def test_a_file_that_was_cut_ends_there(whole):
    part = whole.part()
    write_all(part, memoryview(bytes(3 * BLOCK_BYTES)))
    whole.file.truncate(BLOCK_BYTES + 7)
    part.seek(0)
    assert len(part.read(3 * BLOCK_BYTES)) == BLOCK_BYTES + 7


def test_blocks_of_closed_parts_are_used_again(whole):
    """The first ones first."""
    data = memoryview(bytes(range(256)) * (4 * BLOCK_BYTES // 256))
    parts = [whole.part() for _ in range(4)]
    for part in parts:
        write_all(part, data)
    full = size_of(whole)
    for part in parts[:2]:
        part.close()
        part.close()  # a finalizer closes it again
    parts[:2] = [whole.part(), whole.part()]
    for part in parts[:2]:
        write_all(part, data[:-1])
    assert size_of(whole) == full == 4 * len(data)
    assert [content(part) == bytes(data) for part in parts] == [False, False, True, True]


@LISTS_FILES
def test_all_parts_are_one_file_that_goes_when_it_is_dropped(tmp_path):
    whole = BlockFile(str(tmp_path))
    parts = [whole.part() for _ in range(100)]
    for part in parts:
        write_all(part, memoryview(b"data"))
    assert n_open(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
    del whole, part, parts
    assert n_open(tmp_path) == 0
