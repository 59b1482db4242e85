"""Compressed sections of session files: bytes as they were, in less room, and what is refused of them."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

import edgekv
from edgekv.store.atomic_write import atomic_write
from edgekv.store.byte_planes import CHUNK_BYTES, LENGTHS, pack, unpack
from edgekv.store.snapshot_file import FRAME, Section, open_snapshot_file, write_snapshot_file

TOKENS = np.arange(50, dtype=np.int32)


def chunked(data):
    return (data[first : first + CHUNK_BYTES] for first in range(0, len(data), CHUNK_BYTES))


def write(path, cells):
    with atomic_write(path) as file:
        sections = [Section("cells", len(cells), chunked(cells), packed=True), Section.of("tokens", TOKENS)]
        write_snapshot_file(file, {"n": 1}, sections)


def numbers(n_bytes):
    """Rows of f16 as a cache holds them, after positions of cells, as bytes."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=n_bytes // 2).astype(np.float16).view(np.uint8)
    positions = np.tile(np.arange(1000, dtype=np.uint32), 90).view(np.uint8)
    return np.concatenate([positions, rows])[:n_bytes]


def summed(data):
    return data + zlib.crc32(data).to_bytes(4, "little")


def read_whole(path):
    with open_snapshot_file(path) as file:
        data = np.empty(file.n_bytes, np.uint8)
        file.read_into(0, data)
        return data


@pytest.mark.parametrize("n", [0, 1, 3, 5, 4096, CHUNK_BYTES - 1, CHUNK_BYTES])
def test_a_chunk_comes_back_as_it_was(n):
    rng = np.random.default_rng(n)
    for data in (np.zeros(n, np.uint8), rng.integers(0, 256, n, dtype=np.uint8), numbers(CHUNK_BYTES)[:n]):
        lengths, *planes = pack(data)
        assert sum(map(len, planes)) <= n
        into = np.empty(n, np.uint8)
        unpack(np.concatenate(planes), LENGTHS.unpack(lengths), into)
        assert np.array_equal(into, data)


@pytest.mark.parametrize("n", [0, 7, CHUNK_BYTES, 3 * CHUNK_BYTES + 11])
def test_a_file_comes_back_in_any_pieces(tmp_path, n):
    cells = numbers(4 * CHUNK_BYTES)[:n]
    write(tmp_path / "a", cells)
    with open_snapshot_file(tmp_path / "a") as file:
        assert (file.n_bytes, file.is_packed) == (n, True)
        rng = np.random.default_rng(1)
        for _ in range(30):
            first, stop = sorted(rng.integers(0, n + 1, 2).tolist())
            piece = np.empty(stop - first, np.uint8)
            file.read_into(first, piece)
            assert np.array_equal(piece, cells[first:stop])
        assert np.array_equal(np.concatenate(list(file.numbers("tokens"))), TOKENS)
        with pytest.raises(edgekv.SessionFileError, match="ends too early"):
            file.read_into(n, np.empty(1, np.uint8))


def test_the_documented_bytes(tmp_path):
    """As docs/sessions.md says, without the reader."""
    cells = numbers(CHUNK_BYTES + 4000)
    write(tmp_path / "a", cells)
    raw = (tmp_path / "a").read_bytes()
    magic, version, header_bytes, file_bytes = FRAME.unpack_from(raw)
    assert (magic, version, file_bytes) == (b"edgekv\r\n", 3, 0)
    header = json.loads(raw[24 : 24 + header_bytes])
    assert header["sections"] == [["cells", len(cells), "planes"], ["tokens", 200]]
    at, found = 24 + header_bytes, b""
    for n in (CHUNK_BYTES, 4000):
        chunk = bytearray(n)
        lengths = np.frombuffer(raw[at : at + 16], "<u4").tolist()
        at += 16
        for i, length in enumerate(lengths):
            plane = raw[at : at + length]
            chunk[i::4] = plane if length == n // 4 else zlib.decompress(plane, -15)
            at += length
        found += chunk
    assert found == cells.tobytes()
    assert raw[at : at + 200] == TOKENS.tobytes()
    assert int.from_bytes(raw[-4:], "little") == zlib.crc32(raw[:-4])
    assert len(raw) == at + 200 + 4


def test_rows_and_positions_take_less(tmp_path):
    cells = numbers(8 * CHUNK_BYTES)
    write(tmp_path / "a", cells)
    assert (tmp_path / "a").stat().st_size < 0.85 * len(cells)


def test_damaged_chunks_are_refused(tmp_path):
    """Also those with a right checksum, which a stranger can make."""
    cells = numbers(CHUNK_BYTES + 100_000)
    write(tmp_path / "a", cells)
    raw = (tmp_path / "a").read_bytes()
    begin = 24 + FRAME.unpack_from(raw)[2]
    rng = np.random.default_rng(0)
    n_refused = 0
    for at in [*range(begin, begin + 16), *rng.integers(begin, len(raw) - 300, 60).tolist()]:
        changed = bytearray(raw[:-4])
        changed[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "b").write_bytes(summed(bytes(changed)))
        try:
            found = read_whole(tmp_path / "b")
        except edgekv.SessionFileError:
            n_refused += 1
        else:  # a plane that is stored as it is may be any bytes
            assert len(found) == len(cells)
    assert n_refused >= 16


def test_a_small_file_cannot_claim_many_chunks(tmp_path):
    header = json.dumps({"about": {}, "sections": [["cells", 1 << 50, "planes"]]}).encode()
    body = np.zeros(1 << 20, np.uint8).tobytes()
    (tmp_path / "a").write_bytes(summed(FRAME.pack(b"edgekv\r\n", 3, len(header), 0) + header + body))
    with pytest.raises(edgekv.SessionFileError, match="its header is not what a session file has"):
        read_whole(tmp_path / "a")


@pytest.mark.parametrize("mark", ['"other"', "1", "null", '["planes"]', '"planes", 2'])
def test_unknown_marks_are_refused(tmp_path, mark):
    header = f'{{"about": {{}}, "sections": [["cells", 0, {mark}]]}}'.encode()
    (tmp_path / "a").write_bytes(summed(FRAME.pack(b"edgekv\r\n", 3, len(header), 0) + header))
    with pytest.raises(edgekv.SessionFileError, match="its header is not what a session file has"):
        read_whole(tmp_path / "a")
