"""A GGUF file taken apart, so that any part of it can be made wrong and the rest put together again."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

STRING, ARRAY = 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
ALIGNMENT = 32

Value = int | float | bytes


@dataclass
class Key:
    """A metadata key. `values` are the elements of an array, or one value; `element_type` is that of each."""

    name: bytes
    element_type: int
    values: list[Value]
    is_array: bool

    def build(self) -> bytes:
        head = string(self.name)
        if self.is_array:
            head += struct.pack("<IIQ", ARRAY, self.element_type, len(self.values))
        else:
            head += struct.pack("<I", self.element_type)
        return head + b"".join(pack(self.element_type, value) for value in self.values)


@dataclass
class Tensor:
    """A tensor's entry in the header."""

    name: bytes
    shape: list[int]
    ggml_type: int
    offset: int

    def build(self) -> bytes:
        n_dims = len(self.shape)
        return string(self.name) + struct.pack(f"<I{n_dims}QIQ", n_dims, *self.shape, self.ggml_type, self.offset)


@dataclass
class GgufFile:
    """All of a file. The counts are those of the lists, unless set."""

    keys: list[Key] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    data: bytes = b""
    n_keys: int | None = None
    n_tensors: int | None = None

    def build(self) -> bytes:
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        head = struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_keys)
        head += b"".join(part.build() for part in [*self.keys, *self.tensors])
        return head + bytes(-len(head) % ALIGNMENT) + self.data

    def key(self, ending: bytes) -> Key:
        """The first key whose name ends so."""
        return next(key for key in self.keys if key.name.endswith(ending))


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def pack(value_type: int, value: Value) -> bytes:
    """A value as its type wants it; numbers out of range wrap around."""
    if isinstance(value, bytes):
        return string(value)
    form = FORMATS[value_type]
    if form in "fd":
        return struct.pack(f"<{form}", value)
    n_bytes = struct.calcsize(form)
    return (int(value) % (1 << 8 * n_bytes)).to_bytes(n_bytes, "little")


def parse(raw: bytes) -> GgufFile:
    """Take a sound file apart."""
    place = 0

    def take(form: str) -> tuple:
        nonlocal place
        values = struct.unpack_from(f"<{form}", raw, place)
        place += struct.calcsize(f"<{form}")
        return values

    def text() -> bytes:
        nonlocal place
        (n_bytes,) = take("Q")
        place += n_bytes
        return raw[place - n_bytes : place]

    def key() -> Key:
        name, (value_type,) = text(), take("I")
        element_type, n = take("IQ") if value_type == ARRAY else (value_type, 1)
        values = [text() for _ in range(n)] if element_type == STRING else list(take(f"{n}{FORMATS[element_type]}"))
        return Key(name, element_type, values, value_type == ARRAY)

    def tensor() -> Tensor:
        name, (n_dims,) = text(), take("I")
        return Tensor(name, list(take(f"{n_dims}Q")), *take("IQ"))

    _, _, n_tensors, n_keys = take("4sIQQ")
    keys = [key() for _ in range(n_keys)]
    tensors = [tensor() for _ in range(n_tensors)]
    return GgufFile(keys, tensors, raw[place + -place % ALIGNMENT :])
