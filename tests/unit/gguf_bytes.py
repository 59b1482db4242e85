"""Builds GGUF files byte by byte, right or wrong, for the tests of the reader."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def u32(value: int) -> bytes:
    return struct.pack("<II", U32, value)


def text(value: str | bytes) -> bytes:
    return struct.pack("<I", STRING) + string(value)


def strings(*values: str) -> bytes:
    return struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(string(value) for value in values)


def f32(value: float) -> bytes:
    return struct.pack("<If", F32, value)


def i32s(*values: int) -> bytes:
    return struct.pack(f"<IIQ{len(values)}i", ARRAY, I32, len(values), *values)


def u32s(*values: int) -> bytes:
    return struct.pack(f"<IIQ{len(values)}I", ARRAY, U32, len(values), *values)


def tensor(name: str, shape: tuple[int, ...], ggml_type: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, ggml_type, offset)


def metadata(**changes: bytes | None) -> dict[str, bytes]:
    """A sound llama of 2 layers; in `changes`, "__" stands for "." and None drops the key."""
    values: dict[str, bytes | None] = {
        "general.architecture": text("llama"),
        "llama.block_count": u32(2),
        "llama.context_length": u32(128),
        "llama.embedding_length": u32(64),
        "llama.attention.head_count": u32(4),
        "llama.attention.head_count_kv": u32(2),
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.tokens": strings("<unk>", "a", "b", *BYTE_TOKENS),
        "tokenizer.chat_template": text("{{ messages }}"),
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


@dataclass
class GgufBytes:
    """The parts of a file; `n_keys` and `n_tensors` are counted where they are None."""

    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_keys: int | None = None
    keys: list[bytes] = field(default_factory=lambda: as_keys(metadata()))
    # 64 x 3 values of F32 and, 768 bytes on, 32 x 2 values of Q4_0.
    tensors: list[bytes] = field(default_factory=lambda: [tensor("a", (64, 3), 0, 0), tensor("b", (32, 2), 2, 768)])
    data: bytes = bytes(768 + 36)
    alignment: int = 32

    def build(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_keys)
        head += b"".join(self.keys) + b"".join(self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data


def as_keys(values: dict[str, bytes]) -> list[bytes]:
    return [string(key) + value for key, value in values.items()]
