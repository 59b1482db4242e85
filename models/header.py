"""The header of a GGUF model file, read in one forward pass within a few MiB for any vocabulary.

    "GGUF" | version u32 | n_tensors u64 | n_keys u64 | keys and values | tensor infos | padding | tensor data

The reader of the `gguf` package is not used here: it holds an object for each element of each array.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgekv.errors import InvalidModelError, ModelError, ModelNotFoundError

from .dimensions import check_dimensions, check_runnable, layer_arrays
from .ggml_types import GGML_TYPES, GgmlType
from .metadata import TOKENS_KEY, Metadata, Scalar, read_metadata
from .stream import Stream
from .tokenizer import check_tokenizer

TEMPLATE_KEY = "tokenizer.chat_template"
TOOLS_TEMPLATE_KEY = "tokenizer.chat_template.tool_use"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_READ_BYTES = 1 << 18
# Limits of ggml on a tensor; a model of 512 layers has some 20,000 tensors.
_MAX_TENSORS = 65_536
_MAX_DIMS = 4
_MAX_NAME_BYTES = 63
_MAX_VALUES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` begins with the row length, as ggml counts; `offset` is in bytes from the header's `data_offset`."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GgmlType
    offset: int

    @property
    def n_bytes(self) -> int:
        return self.ggml_type.n_bytes(math.prod(self.shape))


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a GGUF file: metadata, tensors and their sizes.

    metadata       scalar values by key; a string of over 1 MiB is left out
    array_lengths  number of elements of each array by key
    layer_arrays   the elements of those arrays that hold a whole number for each layer
    data_offset    first byte of the tensor data
    file_bytes     size of the file
    weight_bytes   size of all tensors together, without the padding between them
    """

    architecture: str
    metadata: Mapping[str, Scalar]
    array_lengths: Mapping[str, int]
    layer_arrays: Mapping[str, tuple[int, ...]]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    file_bytes: int
    weight_bytes: int

    @property
    def n_tensors(self) -> int:
        return len(self.tensors)

    @property
    def n_layer(self) -> int:
        return int(self.metadata[f"{self.architecture}.block_count"])

    @property
    def n_embd(self) -> int:
        return int(self.metadata[f"{self.architecture}.embedding_length"])

    @property
    def n_head(self) -> int | None:
        """Query heads a layer; None if the layers differ."""
        return self._size("attention.head_count")

    @property
    def n_head_kv(self) -> int | None:
        """KV heads a layer, which are the query heads if the file is silent; None if the layers differ."""
        if f"{self.architecture}.attention.head_count_kv" in self.array_lengths:
            return None
        return self._size("attention.head_count_kv") or self.n_head

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """KV heads of each layer, (n_layer,); 0 if it has no attention."""
        key = f"{self.architecture}.attention.head_count_kv"
        is_named = key in self.metadata or key in self.layer_arrays
        return self.by_layer("attention.head_count_kv" if is_named else "attention.head_count")

    @property
    def head_dim(self) -> int:
        """Elements of a key. llama.cpp takes it from the first layer if the file does not name it."""
        return self._size("attention.key_length") or self.n_embd // (self.by_layer("attention.head_count")[0] or 1)

    def by_layer(self, name: str) -> tuple[int, ...]:
        """A dimension of each layer, (n_layer,), such as "feed_forward_length"; all 0 if the file is silent."""
        array = self.layer_arrays.get(f"{self.architecture}.{name}")
        return self.n_layer * (self._size(name) or 0,) if array is None else array

    @property
    def n_ctx_train(self) -> int | None:
        """Positions the model was trained on; None if the file is silent."""
        return self._size("context_length")

    def suits_cache(self, kv_type: str) -> bool:
        """Return False for a type of cache that may spoil long texts: q4_0, if biases are added to the model's keys.

        In Qwen2 and Qwen2.5 they make a few elements of each key far larger than the others, which 4 bits lose.
        """
        has_biases = any(tensor.name.endswith(("attn_k.bias", "attn_qkv.bias")) for tensor in self.tensors)
        return kv_type != "q4_0" or not has_biases

    @property
    def vocab_size(self) -> int:
        return self.array_lengths[TOKENS_KEY]

    @property
    def chat_template(self) -> str | None:
        """The template of messages; None if the file has none."""
        return self._template(TEMPLATE_KEY)

    @property
    def tools_template(self) -> str | None:
        """Return the template of messages with tools: the file's own for tools, or else its template of messages."""
        return self._template(TOOLS_TEMPLATE_KEY) or self.chat_template

    def _template(self, key: str) -> str | None:
        template = self.metadata.get(key)
        return template if isinstance(template, str) else None

    def _size(self, name: str) -> int | None:
        value = self.metadata.get(f"{self.architecture}.{name}")
        return None if value is None else int(value)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of the GGUF file (version 2 or 3) at `path`.

    Raises ModelNotFoundError if there is no file, UnsupportedModelError for one of several split files,
    a file without a tokenizer and a model without attention, and InvalidModelError for all other errors.
    """
    path = Path(path)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # ValueError: the path holds a NUL.
        raise ModelNotFoundError(f"there is no model file {str(path)!r}; check the path") from None
    except OSError as error:
        raise unreadable(path, error) from error
    # Opening a pipe or a device could wait for ever.
    if not stat.S_ISREG(status.st_mode):
        raise InvalidModelError(f"{str(path)!r} is not a file; give the path of a GGUF file")
    try:
        with path.open("rb", buffering=_READ_BYTES) as file:
            return parse_header(Stream(file, status.st_size))
    except OSError as error:
        raise unreadable(path, error) from error
    except ModelError as error:
        raise type(error)(f"{str(path)!r}: {error}") from None


def header_digest(path: Path, header: Header) -> str:
    """Return a digest of the bytes before the tensor data (metadata, vocabulary, table of tensors), in hex.

    It does not depend on the file's path. Models that differ only in their weights have the same digest.
    Raises InvalidModelError if the file can no longer be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            for first in range(0, header.data_offset, _READ_BYTES):
                digest.update(file.read(min(_READ_BYTES, header.data_offset - first)))
    except OSError as error:
        raise unreadable(path, error) from error
    return digest.hexdigest()


def unreadable(path: Path, error: OSError) -> InvalidModelError:
    """Return the error for a model's file that the system does not read."""
    return InvalidModelError(f"{str(path)!r} cannot be read: {error.strerror}; check the path and its permissions")


def parse_header(stream: Stream) -> Header:
    """Read and check the header at the beginning of a stream. Raises what `read_header` raises."""
    n_tensors, n_keys = _read_counts(stream)
    metadata = read_metadata(stream, n_keys)
    architecture = metadata.scalars.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise InvalidModelError(
            f"the metadata key 'general.architecture' is {architecture!r}, but must be a name; download the file again"
        )
    check_runnable(architecture, metadata)
    check_dimensions(architecture, metadata)
    check_tokenizer(architecture, metadata)
    tensors = _read_tensors(stream, n_tensors)
    alignment = _alignment(metadata)
    data_offset = padded(stream.position, alignment)
    return Header(
        architecture=architecture,
        metadata=metadata.scalars,
        array_lengths={key: array.length for key, array in metadata.arrays.items()},
        layer_arrays=layer_arrays(architecture, metadata),
        tensors=tensors,
        data_offset=data_offset,
        file_bytes=stream.file_bytes,
        weight_bytes=_check_layout(tensors, data_offset, alignment, stream.file_bytes),
    )


def _read_counts(stream: Stream) -> tuple[int, int]:
    """Read the numbers of tensors and of metadata keys."""
    if stream.file_bytes == 0:
        raise InvalidModelError("the file is empty; download it again")
    magic = stream.take(len(_MAGIC), "the magic")
    if magic != _MAGIC:
        raise InvalidModelError(
            f"the file starts with {magic!r}, but a GGUF file with {_MAGIC!r}; name another file, or download it again"
        )
    version = stream.u32("the version")
    if version not in _VERSIONS:
        raise InvalidModelError(
            f"the file has GGUF version {version} (0x{version:08x}), but edgekv reads little-endian versions "
            f"{_VERSIONS[0]} and {_VERSIONS[1]}; convert the model anew or download it again"
        )
    n_tensors = stream.u64("the number of tensors")
    if not 1 <= n_tensors <= _MAX_TENSORS:
        raise InvalidModelError(
            f"the file claims {n_tensors} tensors, but a model has from 1 to {_MAX_TENSORS}; download it again"
        )
    return n_tensors, stream.u64("the number of metadata keys")


def _read_tensors(stream: Stream, n_tensors: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    for _ in range(n_tensors):
        tensor = _read_tensor(stream)
        if tensor.name in tensors:
            raise InvalidModelError(f"the tensor {tensor.name!r} stands twice in the file; download it again")
        tensors[tensor.name] = tensor
    return tuple(tensors.values())


def _read_tensor(stream: Stream) -> TensorInfo:
    name = stream.string("a tensor name", _MAX_NAME_BYTES).decode(errors="replace")
    what = f"the tensor {name!r}"
    n_dims = stream.u32(what)
    if not 1 <= n_dims <= _MAX_DIMS:
        raise InvalidModelError(
            f"{what} has {n_dims} dimensions, but ggml has from 1 to {_MAX_DIMS}; download it again"
        )
    shape = tuple(stream.u64(what) for _ in range(n_dims))
    if min(shape) < 1 or math.prod(shape) > _MAX_VALUES:
        raise InvalidModelError(
            f"{what} has the shape {shape}, but each dimension must be at least 1, "
            f"and their product at most {_MAX_VALUES}; download the file again"
        )
    type_number = stream.u32(what)
    ggml_type = GGML_TYPES.get(type_number)
    if ggml_type is None:
        raise InvalidModelError(
            f"{what} has the ggml type {type_number}, which this llama.cpp does not know; "
            "download the file again or convert the model anew"
        )
    if shape[0] % ggml_type.block_values:
        raise InvalidModelError(
            f"{what} has rows of {shape[0]} values, but {ggml_type.name} needs a multiple "
            f"of {ggml_type.block_values}; download the file again"
        )
    # ggml adds and multiplies vectors, and norms by group, only in F32; on other types it aborts the process.
    is_vector = n_dims == 1 or "norm" in name
    if not ggml_type.is_weight or (is_vector and ggml_type.name != "F32"):
        raise InvalidModelError(
            f"{what} has the type {ggml_type.name} in {n_dims} dimensions, but vectors and norms must be F32, and "
            "weights of a type that ggml multiplies with; convert the model anew or download it again"
        )
    return TensorInfo(name, shape, ggml_type, offset=stream.u64(what))


def _alignment(metadata: Metadata) -> int:
    """Return the alignment of the tensor data and of each tensor, in bytes."""
    alignment = metadata.scalars.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise InvalidModelError(f"'general.alignment' is {alignment!r}, but must be a power of 2; download it again")
    return alignment


def _check_layout(tensors: tuple[TensorInfo, ...], data_offset: int, alignment: int, file_bytes: int) -> int:
    """Check that the tensors stand one behind the other and inside the file; returns their bytes."""
    offset = 0
    weight_bytes = 0
    for tensor in tensors:
        if tensor.offset != offset:
            raise InvalidModelError(
                f"the tensor {tensor.name!r} has the offset {tensor.offset}, but the one before it ends at {offset}; "
                "the file is damaged: download it again"
            )
        end = data_offset + offset + tensor.n_bytes
        if end > file_bytes:
            raise InvalidModelError(
                f"the file ends at byte {file_bytes}, but the tensor {tensor.name!r} at byte {data_offset + offset} "
                f"needs {tensor.n_bytes} bytes; download it again"
            )
        weight_bytes += tensor.n_bytes
        offset = padded(offset + tensor.n_bytes, alignment)
    return weight_bytes


def padded(n_bytes: int, alignment: int) -> int:
    """Return the least multiple of the alignment that holds n_bytes."""
    return -(-n_bytes // alignment) * alignment
