"""The key-value part of a GGUF file. Scalars and short arrays of numbers are kept; of other arrays only the size."""

from __future__ import annotations

import struct
from array import array as packed
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgekv.errors import InvalidModelError

from .stream import MAX_STRING_BYTES, Stream

Scalar = bool | int | float | str

TOKENS_KEY = "tokenizer.ggml.tokens"

# Real files have some 30 to 200 keys of some 30 bytes, and text of at most a few hundred KiB.
MAX_KEYS = 16_384
MAX_KEY_BYTES = 1_024
MAX_TEXT_BYTES = 8 << 20
# Real vocabularies have up to 262,144 tokens and some 500,000 merges.
MAX_ARRAY_STRINGS = 4 << 20
MAX_ARRAY_VALUES = 1 << 30
# Arrays with a number for each layer are held. llama.cpp has at most 512 layers; real files have a few such arrays.
MAX_HELD_LENGTH = 512
MAX_HELD_VALUES = 1 << 16

# Numbered as in `enum gguf_type`.
_NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING = 8
_ARRAY = 9

_TYPE_NAMES = {
    **{0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 10: "u64", 11: "i64", 12: "f64"},
    _STRING: "string",
}


@dataclass(frozen=True, slots=True)
class Array:
    """An array of `length` elements of a type such as "i32"; `values` are held if they are few numbers."""

    element_type: str
    length: int
    values: tuple[int | float, ...] | None = None


@dataclass(slots=True)
class Metadata:
    """`scalars` and `arrays` by key. Strings of over MAX_STRING_BYTES are left out: edgekv reads none.

    n_byte_tokens  number of the 256 bytes that have a token of their own, written as "<0x41>" or as that byte
    """

    scalars: dict[str, Scalar] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    n_byte_tokens: int = 0


def read_metadata(stream: Stream, n_keys: int) -> Metadata:
    """Read `n_keys` key-value pairs. Raises InvalidModelError."""
    if n_keys > MAX_KEYS:
        raise InvalidModelError(
            f"the file claims {n_keys} metadata keys, but at most {MAX_KEYS} can be right; "
            "the file is damaged: download it again"
        )
    metadata = Metadata()
    seen = set()
    text_bytes = n_held = 0
    for _ in range(n_keys):
        key = _read_key(stream)
        if key in seen:
            raise InvalidModelError(f"the metadata key {key!r} stands twice in the file; download it again")
        seen.add(key)
        value_type = stream.u32(f"the type of {key!r}")
        if value_type == _ARRAY:
            array = _read_array(stream, key, metadata)
            metadata.arrays[key] = array
            n_held += len(array.values or ())
            if n_held > MAX_HELD_VALUES:
                raise InvalidModelError(
                    f"the short arrays up to {key!r} have over {MAX_HELD_VALUES} values; "
                    "the file is damaged: download it again"
                )
            continue
        value = _read_scalar(stream, key, value_type)
        if value is None:
            continue
        metadata.scalars[key] = value
        text_bytes += len(value) if isinstance(value, str) else 0
        if text_bytes > MAX_TEXT_BYTES:
            raise InvalidModelError(
                f"the metadata strings up to {key!r} have over {MAX_TEXT_BYTES} bytes; "
                "the file is damaged: download it again"
            )
    return metadata


def _read_key(stream: Stream) -> str:
    what = "a metadata key"
    start = stream.position
    data = stream.string(what, MAX_KEY_BYTES)
    try:
        key = data.decode()
    except UnicodeDecodeError:
        raise InvalidModelError(f"{what} at byte {start} is not UTF-8; download the file again") from None
    if not key:
        raise InvalidModelError(f"{what} at byte {start} is empty; download the file again")
    return key


def _read_scalar(stream: Stream, key: str, value_type: int) -> Scalar | None:
    """Read a value; None for a string that is too long to be held."""
    what = f"the value of {key!r}"
    if value_type == _STRING:
        n_bytes = stream.u64(what)
        if n_bytes > MAX_STRING_BYTES:
            stream.skip(n_bytes, what)
            return None
        return stream.take(n_bytes, what).decode(errors="replace")
    if value_type not in _NUMBERS:
        raise InvalidModelError(_bad_type(key, value_type))
    number = _NUMBERS[value_type]
    value: Scalar = number.unpack(stream.take(number.size, what))[0]
    return value


def _read_array(stream: Stream, key: str, metadata: Metadata) -> Array:
    """Measure the array, and step over its elements if they are many."""
    what = f"the array {key!r}"
    value_type = stream.u32(what)
    length = stream.u64(what)
    limit = MAX_ARRAY_STRINGS if value_type == _STRING else MAX_ARRAY_VALUES
    if length > limit:
        raise InvalidModelError(
            f"{what} claims {length} elements, but at most {limit} can be right; the file is damaged: download it again"
        )
    if value_type not in _TYPE_NAMES:
        raise InvalidModelError(_bad_type(key, value_type))
    values: tuple[int | float, ...] | None = None
    if value_type != _STRING:
        number = _NUMBERS[value_type]
        if length <= MAX_HELD_LENGTH:
            data = stream.take(length * number.size, what)
            values = tuple(value for (value,) in number.iter_unpack(data))
        else:
            stream.skip(length * number.size, what)
    elif key == TOKENS_KEY:
        metadata.n_byte_tokens = _skip_tokens(stream, length, what)
    else:
        for _ in stream.strings(length, what):
            pass
    return Array(_TYPE_NAMES[value_type], length, values)


def _skip_tokens(stream: Stream, length: int, what: str) -> int:
    """Step over the vocabulary; returns the number of byte tokens.

    A vocabulary with a token twice is refused: llama.cpp aborts the process on it. This takes eight bytes a token.
    Two of 262,144 tokens share a 64-bit hash by chance once in 5e8 files.
    """
    hashes = packed("q")
    for tokens in stream.strings(length, what):
        hashes.extend(hash(token) for token in tokens if token)  # llama.cpp renames the empty ones, which may be many
    ordered = np.sort(np.frombuffer(hashes, dtype=np.int64)) if hashes else np.empty(0, dtype=np.int64)
    if np.any(ordered[1:] == ordered[:-1]):
        raise InvalidModelError(f"{what} holds the same token twice; the file is damaged: download it again")
    spelt, bare = (
        _are_in(ordered, [hash(token) for token in byte_tokens])
        for byte_tokens in ([b"<0x%02X>" % byte for byte in range(256)], [bytes([byte]) for byte in range(256)])
    )
    return int(np.count_nonzero(spelt | bare))


def _are_in(ordered: npt.NDArray[np.int64], values: list[int]) -> npt.NDArray[np.bool_]:
    """Return which values are among the ordered ones. np.isin would import numpy.ma, which takes 2 MiB."""
    first, after = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray(first < after)


def _bad_type(key: str, value_type: int) -> str:
    return (
        f"the metadata key {key!r} has the value type {value_type}, but GGUF has only the types 0 to 12, "
        "and no array of arrays; the file is damaged: download it again"
    )


def damaged(problem: str) -> InvalidModelError:
    """Return the error for metadata that could be read but cannot be right."""
    return InvalidModelError(f"{problem}; the file is damaged or badly converted: download it again")
