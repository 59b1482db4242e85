"""Compresses chunks of numbers without loss: bytes of one significance lie together, and each such plane is compressed.

In floats the bytes with the exponent differ little, and those with the end of the mantissa are noise, which is stored
as it is. In numbers of cells most bytes repeat.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES = 1 << 17  # bytes that are compressed together; a part of the file format
N_PLANES = 4
LENGTHS = struct.Struct(f"<{N_PLANES}I")  # stored bytes of each plane
MOST_RATIO = 1040  # deflate reaches 1032
SAMPLE_BYTES = 4096  # bytes of a plane that tell what compressing it is worth
WORTH, REPEATS = 0.93, 0.6  # compressed bytes over bytes: below these, compress; look for repeats as well


def chunks(data: Bytes) -> Iterator[Bytes]:
    """Yield the stored form of any bytes, chunk by chunk."""
    for first in range(0, len(data), CHUNK_BYTES):
        yield from pack(data[first : first + CHUNK_BYTES])


def pack(chunk: Bytes) -> list[Bytes]:
    """Return the stored form of at most CHUNK_BYTES: the lengths, then the planes."""
    stored = [_smaller(np.ascontiguousarray(chunk[i::N_PLANES])) for i in range(N_PLANES)]
    return [np.frombuffer(LENGTHS.pack(*map(len, stored)), np.uint8), *stored]


def unpack(stored: Bytes, lengths: Sequence[int], into: Bytes) -> None:
    """Fill `into` with a chunk. stored: its planes. Raises ValueError if they are not those of such a chunk."""
    begin = 0
    for i, n in enumerate(lengths):
        plane, wanted = stored[begin : begin + n], into[i::N_PLANES]
        begin += n
        if n != len(wanted):
            try:
                plane = np.frombuffer(zlib.decompressobj(-zlib.MAX_WBITS).decompress(plane.data, len(wanted)), np.uint8)
            except zlib.error as error:
                raise ValueError(str(error)) from error
        if len(plane) != len(wanted):
            raise ValueError("a plane is too short")
        wanted[:] = plane


def _smaller(plane: Bytes) -> Bytes:
    """Return a plane compressed, or as it is if that is not worth it."""
    sample = plane[:SAMPLE_BYTES]
    n = len(zlib.compress(sample.data, 1))
    if n > WORTH * len(sample):
        return plane
    # repeats are seldom in rows, and looking for them takes three times as long
    strategy = zlib.Z_DEFAULT_STRATEGY if n < REPEATS * len(sample) else zlib.Z_HUFFMAN_ONLY
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    packed = packer.compress(plane.data) + packer.flush()
    return np.frombuffer(packed, np.uint8) if len(packed) < len(plane) else plane
