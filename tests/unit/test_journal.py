"""Journals: whole records, torn ends and damaged middles."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgekv.errors import SessionFileError
from edgekv.store.journal import BEGIN, Journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def written(path, n=5):
    """Write a journal with n records after the first; returns where each record ends."""
    journal = Journal.create(path, "it", {"of": "it"})
    ends = [journal.n_bytes]
    for i in range(n):
        journal.append({"i": i, "text": "漢" * i}, range(i), ends=i % 2 == 1)
        ends.append(journal.n_bytes)
    journal.close()
    return ends


def read(path, use="read"):
    journal = Journal(path, "it", use)
    try:
        return [(record.values.values, record.numbers.tolist()) for record in journal.records()]
    finally:
        journal.close()


def test_records_come_back_as_they_were(path):
    written(path)
    assert read(path) == [({"of": "it"}, []), *(({"i": i, "text": "漢" * i}, [*range(i)]) for i in range(5))]


@pytest.mark.parametrize("seed", range(50))
def test_a_torn_end_is_cut_and_a_damaged_middle_is_refused(path, seed):
    rng = random.Random(seed)
    ends = written(path)
    whole = read(path)
    data = path.read_bytes()
    at = rng.randrange(BEGIN.size, len(data))
    if rng.random() < 0.5:
        path.write_bytes(data[:at] + bytes(rng.choice((0, 40))))
        assert read(path) == whole[: sum(end <= at for end in ends)]
        journal = Journal(path, "it", "append")
        n = len([*journal.records()])
        journal.append({"more": True}, [7])
        journal.close()
        assert read(path) == [*whole[:n], ({"more": True}, [7])]
        return
    path.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
    n = sum(end <= at for end in ends)
    if n < 4:  # record 4 was flushed
        with pytest.raises(
            SessionFileError, match=r"^it is damaged: its record at byte [\d,]+ is not what was written"
        ):
            read(path)
    else:
        assert read(path) == whole[:n]


def test_a_record_that_cannot_be_written_leaves_none(path, monkeypatch):
    written(path)
    whole = path.read_bytes()
    journal = Journal(path, "it", "append")
    assert len([*journal.records()]) == 6

    def half(file, data):
        file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("edgekv.store.journal.write_all", half)
        with pytest.raises(OSError, match="No space"):
            journal.append({}, np.arange(1000))
    assert path.read_bytes() == whole
    journal.append({}, [1])
    journal.close()
    assert read(path)[-1] == ({}, [1])


def test_one_appends_or_many_read(path):
    written(path)
    first = Journal(path, "it", "read")
    second = Journal(path, "it", "read")
    with pytest.raises(SessionFileError, match=r"^it is open elsewhere"):
        Journal(path, "it", "append")
    first.close()
    second.close()
    appending = Journal(path, "it", "append")
    for use in ("append", "read"):
        with pytest.raises(SessionFileError, match=r"^it is open elsewhere"):
            Journal(path, "it", use)
    assert len(read(path, "look")) == 6
    appending.close()


@pytest.mark.parametrize("begin", [b"", b"edgekv\r\n", b"edgekvj\n", b"edgekvj\n\x07\0\0\0"])
def test_other_files_are_refused(path, begin):
    path.write_bytes(begin)
    with pytest.raises(SessionFileError, match=r"^it (is no kept session|has version 7)"):
        Journal(path, "it", "read")
