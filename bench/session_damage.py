"""Ways to make a session file wrong. Each takes a random source and a file, and returns the bytes of a damaged one.

Those of SUMMED write a checksum that is right again: what they say must then be refused for what it says, or be sound.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from edgekv.binding import structs
from edgekv.store.sections import ALIGNMENT, CHECKSUM_BYTES, FRAME

Damage = Callable[[random.Random, bytes], bytes]

NUMBERS = (0, 1, 2, 63, 64, 77, 1 << 16, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 1 << 31, 1 << 62, 1.5, 1e308, "", "user", "text", "\ud800", "x" * 70_000, {}, {"seed": -1}),
    *([], [0], [[0, 1 << 30]], [[5, 1]], [[0, 0]] * 999, [-1], [1 << 31], ["a"], [[[[]]]]),
)


def flipped_bits(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data) if bytes(data) != raw else raw[:-1]


def truncated(rng: random.Random, raw: bytes) -> bytes:
    return raw[: rng.randrange(rng.choice((64, len(raw))))]


def moved_bytes(rng: random.Random, raw: bytes) -> bytes:
    """A run of bytes is cut out, or doubled."""
    start, n = rng.randrange(len(raw)), rng.choice((1, 4, 64, 4096))
    return raw[:start] + rng.choice((raw[start + n :], raw[start : start + n] + raw[start:]))


def lying_frame(rng: random.Random, raw: bytes) -> bytes:
    """Version, and bytes of the header and of the file."""
    frame = list(FRAME.unpack_from(raw))
    which = rng.choice((1, 2, 3))
    frame[which] = rng.choice([number for number in (*NUMBERS, len(raw) - 1, len(raw) + 1) if number != frame[which]])
    return FRAME.pack(*frame) + raw[FRAME.size :]


def lying_sections(rng: random.Random, raw: bytes) -> bytes:
    """A section has another length, type or name, is left out, or comes twice."""
    header, body = _parse(raw)
    sections = header["sections"]
    section = rng.choice(sections)
    what = rng.randrange(5)
    if what < 3:
        section[what] = rng.choice(
            (("cells", "history", "", 7), ("U8", "I32", "F64"), (*NUMBERS, section[2] - 1, section[2] + 1))[what]
        )
    else:
        sections.remove(section)
        sections.extend([section] * (0 if what == 3 else 2))
    return _build(header, body)


def lying_values(rng: random.Random, raw: bytes) -> bytes:
    """A value of what a file says of its session is another."""
    header, body = _parse(raw)
    about = header["about"]
    within = rng.choice([about, about, about["saved_with"], about["sampler"], about["sampler"]["sampling"]])
    name = rng.choice(list(within))
    within[name] = rng.choice(VALUES)
    if rng.random() < 0.2:
        del within[name]
    return _build(header, body)


def hostile_json(rng: random.Random, raw: bytes) -> bytes:
    """A header that is none."""
    _, body = _parse(raw)
    texts = (
        b"[" * 100_000,
        b'{"about":' * 20_000,
        b"\xff\xfe",
        b"",
        b"null",
        b"9" * 9_000,
        b"{}",
        b'{"about":{},"sections":[[]]}',
    )
    return _joined(rng.choice(texts), body)


def lying_numbers(rng: random.Random, raw: bytes) -> bytes:
    """A number before the cells' positions is another: counts, sizes, flags, positions."""
    begin = _cells(raw)
    n = (ctypes.sizeof(structs.Snapshot) + 64) // 4
    return _with_number(raw, begin + 4 * rng.randrange(n), rng.choice(NUMBERS))


def lying_cells(rng: random.Random, raw: bytes) -> bytes:
    """A number of what cells carry is another: positions, orders, scores."""
    begin = _cells(raw)
    rows_begin = structs.Snapshot.from_buffer_copy(raw, begin).rows_begin
    return _with_number(raw, begin + 4 * rng.randrange(rows_begin // 4), rng.choice(NUMBERS))


def other_rows(rng: random.Random, raw: bytes) -> bytes:
    """Keys, values and queries of any bytes, which are sometimes no numbers."""
    begin = _cells(raw)
    head = structs.Snapshot.from_buffer_copy(raw, begin)
    first = begin + head.rows_begin
    n = rng.choice((1, 64, head.n_bytes - head.rows_begin))
    at = first + rng.randrange(head.n_bytes - head.rows_begin - n + 1)
    return _summed(raw[:at] + rng.choice((rng.randbytes(n), b"\xff" * n)) + raw[at + n : -CHECKSUM_BYTES])


def other_history(rng: random.Random, raw: bytes) -> bytes:
    """Numbers of the log, its marks, or the tokens where drafts are looked up, are others: some, or all and more."""
    header, body = _parse(raw)
    sections = {name: data for name, _, data in body}
    name = rng.choice([name for name in ("history", "tokens", "marks") if name in sections])
    number = struct.pack("<i", rng.choice((-1, 1 << 30, (1 << 31) - 1, 0, 1, 2, 5)))
    data = sections[name]
    if rng.random() < 0.5 and data:
        at = 4 * rng.randrange(len(data) // 4)
        sections[name] = data[:at] + number + data[at + 4 :]
    else:
        sections[name] = number * rng.choice((0, 1, 100, 1 << 15))
    header["sections"] = [[name, kind, len(sections[name]) // (1 if kind == "U8" else 4)] for name, kind, _ in body]
    return _build(header, [(name, kind, sections[name]) for name, kind, _ in body])


UNSUMMED: tuple[Damage, ...] = (flipped_bits, truncated, moved_bytes, lying_frame)
SUMMED: tuple[Damage, ...] = (
    *(lying_sections, lying_values, hostile_json, lying_numbers, lying_numbers, lying_cells, other_rows, other_history),
)
KINDS = (*UNSUMMED, *SUMMED)


def damaged(raw: bytes, number: int) -> tuple[Damage, bytes]:
    """The file of a number, and the kind of its damage."""
    rng = random.Random(number)
    damage = KINDS[number % len(KINDS)]
    return damage, damage(rng, raw)


def _parse(raw: bytes) -> tuple[dict[str, Any], list[tuple[str, str, bytes]]]:
    """The header, and name, type and bytes of every section."""
    n = FRAME.unpack_from(raw)[2]
    header = json.loads(raw[FRAME.size : FRAME.size + n])
    body, end = [], FRAME.size + n
    for name, kind, count in header["sections"]:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + count * (1 if kind == "U8" else 4)
        body.append((name, kind, raw[begin:end]))
    return header, body


def _build(header: dict[str, Any], body: list[tuple[str, str, bytes]]) -> bytes:
    return _joined(json.dumps(header).encode(), body)


def _joined(header: bytes, body: list[tuple[str, str, bytes]]) -> bytes:
    data = header
    for _, _, section in body:
        data += bytes(-(FRAME.size + len(data)) % ALIGNMENT) + section
    magic = b"edgekv\r\n"
    return _summed(FRAME.pack(magic, 1, len(header), FRAME.size + len(data) + CHECKSUM_BYTES) + data)


def _summed(data: bytes) -> bytes:
    return data + hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def _cells(raw: bytes) -> int:
    """Where the cells begin: with the library's own mark."""
    return raw.index(b"edgekvs\x00")


def _with_number(raw: bytes, at: int, number: int) -> bytes:
    return _summed(raw[:at] + struct.pack("<I", number) + raw[at + 4 : -CHECKSUM_BYTES])
