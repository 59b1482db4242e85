"""Ways to make a session file wrong. Each makes of a random source and a sound file a damaged one.

Those of SUMMED write a checksum that is right again: what they say must then be refused for what it says, or be sound.
"""

from __future__ import annotations

import ctypes
import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

from edgekv.binding import structs
from edgekv.store.snapshot_file import CHECKSUM, FRAME, MAGIC, VERSION

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
    """A section has another name or length, is left out, or comes twice."""
    header, body = _parse(raw)
    sections = header["sections"]
    section = rng.choice(sections)
    what = rng.randrange(4)
    if what < 2:
        others: tuple[tuple[Any, ...], ...] = (
            ("cells", "history", "", 7),
            (*NUMBERS, section[1] - 1, section[1] + 1, section[1] + 4),
        )
        section[what] = rng.choice(others[what])
    else:
        sections.remove(section)
        sections.extend([section] * (0 if what == 2 else 2))
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
    rows_begin = _head(raw).rows_begin
    return _with_number(raw, begin + 4 * rng.randrange(rows_begin // 4), rng.choice(NUMBERS))


def other_rows(rng: random.Random, raw: bytes) -> bytes:
    """Keys, values and queries of any bytes, which are sometimes no numbers."""
    begin, head = _cells(raw), _head(raw)
    first = begin + head.rows_begin
    n = rng.choice((1, 64, head.n_bytes - head.rows_begin))
    at = first + rng.randrange(head.n_bytes - head.rows_begin - n + 1)
    return _summed(raw[:at] + rng.choice((rng.randbytes(n), b"\xff" * n)) + raw[at + n : -CHECKSUM.size])


def other_history(rng: random.Random, raw: bytes) -> bytes:
    """Numbers of the log, its marks, or the tokens where drafts are looked up, are others: some, or all and more."""
    header, body = _parse(raw)
    sections = dict(body)
    name = rng.choice([name for name in ("history", "tokens", "marks") if name in sections])
    number = struct.pack("<i", rng.choice((-1, 1 << 30, (1 << 31) - 1, 0, 1, 2, 5)))
    data = sections[name]
    if rng.random() < 0.5 and data:
        at = 4 * rng.randrange(len(data) // 4)
        sections[name] = data[:at] + number + data[at + 4 :]
    else:
        sections[name] = number * rng.choice((0, 1, 100, 1 << 15))
    header["sections"] = [[name, len(data)] for name, data in sections.items()]
    return _build(header, list(sections.items()))


def lying_windows(rng: random.Random, raw: bytes) -> bytes:
    """Cells of sliding windows are hidden, empty, or of another position, with as many rows as they then have."""
    ring = list(ring_of(raw))
    held = [cell for cell, position in enumerate(ring) if position >= 0]
    cells = rng.sample(held, rng.choice((1, 1, 2, len(held) - 1)))
    newest = max(ring)
    how = rng.randrange(6)
    for cell in cells:
        position = ring[cell]
        if how < 3:
            ring[cell] = (-2 - position, -1, -2 - (newest - 1))[how]  # hidden, empty, or hidden as another
        elif how == 3:
            ring[cell] = rng.choice((position - 1, position + 1, newest, 0, newest + 1, 1 << 30))
        else:
            ring[rng.randrange(len(ring))] = (-2 - position, position)[how - 4]  # hidden beside it, or twice
    return with_ring(raw, ring)


def lying_next(rng: random.Random, raw: bytes) -> bytes:
    """The next token, or its key, has another position."""
    begin, head = _cells(raw), _head(raw)
    name = rng.choice(("rope_past", "rope_past", "n_past"))
    at = begin + getattr(structs.Snapshot, name).offset
    return _with_number(raw, at, rng.choice((0, 1, head.n_past // 2, head.n_past - 1, head.n_past + 1, *NUMBERS)))


def lying_pins(rng: random.Random, raw: bytes) -> bytes:
    """Ranges that are never evicted: many, empty, in no order, over one another, or past the end."""
    header, body = _parse(raw)
    some = [sorted(rng.choices((0, 1, 5, 20, 60, 200, 1 << 20, 1 << 30), k=2)) for _ in range(rng.choice((2, 5, 60)))]
    pins = ([[0, 0]] * 100_000, [[p, p] for p in range(100_000)], [[p, p + 1] for p in range(70)], some, sorted(some))
    header["about"]["pinned"] = rng.choice(pins)
    return _build(header, body)


UNSUMMED: tuple[Damage, ...] = (flipped_bits, truncated, moved_bytes, lying_frame)
SUMMED: tuple[Damage, ...] = (
    *(lying_sections, lying_values, hostile_json, lying_numbers, lying_numbers, lying_cells, other_rows, other_history),
    *(lying_windows, lying_next, lying_pins),
)
KINDS = (*UNSUMMED, *SUMMED)


def kind_of(number: int) -> Damage:
    """The kind of damage of a number."""
    return KINDS[number % len(KINDS)]


def damaged(raw: bytes, number: int) -> bytes:
    """The file of a number, made of a sound one."""
    return kind_of(number)(random.Random(number), raw)


def _parse(raw: bytes) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """The header, and name and bytes of every section."""
    n = FRAME.unpack_from(raw)[2]
    header = json.loads(raw[FRAME.size : FRAME.size + n])
    body, end = [], FRAME.size + n
    for name, n in header["sections"]:
        body.append((name, raw[end : end + n]))
        end += n
    return header, body


def _build(header: dict[str, Any], body: list[tuple[str, bytes]]) -> bytes:
    return _joined(json.dumps(header).encode(), body)


def _joined(header: bytes, body: list[tuple[str, bytes]]) -> bytes:
    data = b"".join([header, *(section for _, section in body)])
    return _summed(FRAME.pack(MAGIC, VERSION, len(header), FRAME.size + len(data) + CHECKSUM.size) + data)


def _summed(data: bytes) -> bytes:
    return data + CHECKSUM.pack(zlib.crc32(data))


def _cells(raw: bytes) -> int:
    """Return the place of the library's own mark, where the cells begin."""
    return raw.index(b"edgekvs\x00")


def ring_of(raw: bytes) -> tuple[int, ...]:
    """The positions in the cells of sliding windows, which come before what other cells carry."""
    return struct.unpack_from(f"<{_head(raw).kind.n_ring}i", raw, _ring_begin(raw))


def with_ring(raw: bytes, ring: list[int]) -> bytes:
    """The file with other positions, and with fewer or more rows at its end, which are of all layers in turn."""
    head, begin = _head(raw), _cells(raw)
    n_before, n_now = (sum(position >= 0 for position in positions) for positions in (ring_of(raw), ring))
    n_heads = head.kind.n_heads
    kept = struct.unpack_from(f"<{2 * n_heads}I", raw, begin + ctypes.sizeof(head))
    n_cells = sum(kept[:n_heads]) - sum(kept[n_heads:]) + n_heads * head.n_filled
    rows = head.n_bytes - head.rows_begin - n_cells * head.kind.cell_bytes // max(1, n_heads)
    rows -= head.n_queries * head.kind.query_row_bytes + head.kind.state_bytes
    row = rows // n_before
    header, body = _parse(raw)
    cells = bytearray(dict(body)["cells"])
    struct.pack_into(f"<{len(ring)}i", cells, _ring_begin(raw) - begin, *ring)
    cells += cells[-row:] * (n_now - n_before)
    del cells[head.n_bytes + (n_now - n_before) * row :]
    head.n_bytes = len(cells)
    cells[: ctypes.sizeof(head)] = bytes(head)
    for section in header["sections"]:
        section[1] = len(cells) if section[0] == "cells" else section[1]
    return _build(header, [(name, bytes(cells) if name == "cells" else data) for name, data in body])


def _head(raw: bytes) -> structs.Snapshot:
    return structs.Snapshot.from_buffer_copy(raw, _cells(raw))


def _ring_begin(raw: bytes) -> int:
    head = _head(raw)
    return _cells(raw) + ctypes.sizeof(head) + 4 * (2 * head.kind.n_heads + head.n_queries)


def _with_number(raw: bytes, at: int, number: int) -> bytes:
    return _summed(raw[:at] + struct.pack("<I", number) + raw[at + 4 : -CHECKSUM.size])
