"""The native library, as Python sees it: ctypes declarations of `native/include/edgekv.h` and nothing else.

The library holds llama.cpp, ggml and edgekv, and the `llama_cpp` bindings are made to load the same file.
Nothing is loaded until `library()` or `bindings()` is called. A status other than OK becomes an exception here.
"""

from __future__ import annotations

import ctypes as c
import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import edgekv

from .errors import BudgetError, ConfigError, EdgeKVError, InvalidModelError, NativeError, UnsupportedModelError

ABI_VERSION = 2
ERR_SIZE = 2048

STATUS_ERRORS: dict[int, type[EdgeKVError]] = {
    1: ConfigError,  # EDGEKV_STATUS_INVALID_ARGUMENT
    2: NativeError,  # EDGEKV_STATUS_INVALID_STATE
    3: NativeError,  # EDGEKV_STATUS_NOT_FINITE
    4: UnsupportedModelError,  # EDGEKV_STATUS_UNSUPPORTED
    5: InvalidModelError,  # EDGEKV_STATUS_MODEL_INVALID
    6: NativeError,  # EDGEKV_STATUS_OUT_OF_MEMORY
    7: NativeError,  # EDGEKV_STATUS_INTERNAL
}


class Struct(c.Structure):
    def as_dict(self) -> dict[str, int]:
        """The fields by name."""
        return {field[0]: getattr(self, field[0]) for field in self._fields_}


def _address(array: Any) -> int | None:
    """Of a numpy array's data, which must be contiguous."""
    return None if array is None else int(array.ctypes.data)


class Shape(Struct):
    """struct edgekv_shape"""

    _fields_ = (
        ("n_layer", c.c_uint32),
        ("n_head_total", c.c_uint32),
        ("n_head_kv_max", c.c_uint32),
        ("n_head_max", c.c_uint32),
        ("n_group_max", c.c_uint32),
        ("head_dim_k", c.c_uint32),
        ("head_dim_v", c.c_uint32),
        ("n_cells", c.c_uint32),
        ("n_threads", c.c_uint32),
        ("staged", c.c_uint32),
        ("cell_bytes", c.c_uint64),
        ("layer_bytes", c.c_uint64),
    )


class Memory(Struct):
    """struct edgekv_memory"""

    _fields_ = tuple(
        (name, c.c_uint64)
        for name in ("weight_bytes", "repack_bytes", "kv_bytes", "compute_bytes", "output_bytes", "device_bytes")
    )


class Policy(Struct):
    """struct edgekv_policy"""

    _fields_ = (
        ("base", c.c_int32),
        ("anchor", c.c_int32),
        ("metric", c.c_int32),
        ("pool", c.c_int32),
        ("kernel", c.c_uint32),
        ("rows", c.c_uint32),
        ("seed", c.c_uint64),
        ("flags", c.c_uint32),
        ("softmax", c.c_int32),
        ("weigh", c.c_int32),
        ("rounds", c.c_uint32),
        ("critical", c.c_int32),
        ("alpha", c.c_double),
        ("scorer", c.c_void_p),
    )


class Rows(Struct):
    """struct edgekv_rows"""

    _fields_ = (
        ("data", c.c_void_p),
        ("type", c.c_int32),
        ("dim", c.c_uint32),
        ("n", c.c_uint64),
        ("stride_bytes", c.c_uint64),
        ("rotation", c.c_uint32),
        ("reserved", c.c_uint32),
    )


class Protection(Struct):
    """struct edgekv_protection"""

    _fields_ = (
        ("n_sink", c.c_uint32),
        ("n_recent", c.c_uint32),
        ("pinned", c.POINTER(c.c_int32)),
        ("n_pinned", c.c_size_t),
    )

    @classmethod
    def of(cls, n_sink: int, n_recent: int, pinned: tuple[tuple[int, int], ...]) -> Protection:
        flat = [p for pair in pinned for p in pair]
        return cls(n_sink, n_recent, (c.c_int32 * len(flat))(*flat), len(pinned))


class Cells(Struct):
    """struct edgekv_cells"""

    _fields_ = (
        ("keys", c.POINTER(Rows)),
        ("values", c.POINTER(Rows)),
        ("positions", c.c_void_p),
        ("accumulated", c.c_void_p),
        ("wo_norm", c.c_void_p),
        ("layer", c.c_uint32),
        ("head", c.c_uint32),
    )

    @classmethod
    def of(
        cls, keys: Rows, values: Rows | None, positions: Any, accumulated: Any, wo_norm: Any, layer: int, head: int
    ) -> Cells:
        """Over numpy arrays, which it keeps alive."""
        arrays = (positions, accumulated, wo_norm)
        cells = cls(
            c.pointer(keys), c.pointer(values) if values is not None else None, *map(_address, arrays), layer, head
        )
        cells._arrays = arrays
        return cells


class Queries(Struct):
    """struct edgekv_queries"""

    _fields_ = (
        ("data", c.c_void_p),
        ("positions", c.c_void_p),
        ("n_head", c.c_uint32),
        ("n_rows", c.c_uint32),
        ("dim", c.c_uint32),
        ("n_seen", c.c_int32),
        ("scale", c.c_float),
        ("softcap", c.c_float),
    )

    @classmethod
    def of(cls, rows: Any, positions: Any, scale: float, softcap: float, n_seen: int) -> Queries:
        """Over numpy arrays (n_head, n_rows, dim) and (n_rows,), which it keeps alive."""
        n_head, n_rows, dim = rows.shape
        queries = cls(_address(rows), _address(positions), n_head, n_rows, dim, n_seen, scale, softcap)
        queries._arrays = (rows, positions)
        return queries


class LayerView(Struct):
    """struct edgekv_layer_view"""

    _fields_ = (
        *((name, c.c_uint32) for name in ("layer", "n_head_kv", "n_head", "n", "n_rows")),
        *((name, c.c_uint32) for name in ("head_dim_k", "head_dim_v", "reserved")),
        *((name, c.c_void_p) for name in ("keys", "values", "queries", "positions", "query_positions")),
    )


ScoreLayer = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(LayerView), c.c_void_p)


class Scorer(Struct):
    """struct edgekv_scorer"""

    _fields_ = (("score", ScoreLayer), ("user_data", c.c_void_p), ("reads", c.c_uint32), ("n_rows", c.c_uint32))


class CacheParams(Struct):
    """struct edgekv_cache_params"""

    _fields_ = (
        ("staged", c.c_int32),
        ("n_query_rows", c.c_uint32),
        ("n_probe_rows", c.c_uint32),
        ("accumulates", c.c_int32),
        ("wo_norms", c.c_int32),
        ("custom_reads", c.c_uint32),
    )


class CompactionParams(Struct):
    """struct edgekv_compaction_params"""

    _fields_ = (
        ("policy", c.POINTER(Policy)),
        ("protection", c.POINTER(Protection)),
        ("budget", c.c_uint32),
        ("probed", c.c_int32),
        ("generating", c.c_int32),
    )


class Compaction(Struct):
    """struct edgekv_compaction"""

    _fields_ = (("n_evicted", c.c_uint64), ("score_us", c.c_int64), ("move_us", c.c_int64))


_P = c.c_void_p  # an opaque handle or an array
_ERR = (c.c_char_p, c.c_size_t)

# name -> argument types, without the trailing err, err_size; every one of these returns a status
_CALLS: dict[str, tuple[Any, ...]] = {
    "edgekv_model_load": (c.c_char_p, _P, _P),
    "edgekv_context_new": (_P, _P, _P),
    "edgekv_context_shape": (_P, _P),
    "edgekv_context_memory": (_P, _P),
    "edgekv_score": (_P, _P, _P, c.c_uint32, _P),
    "edgekv_select": (_P, _P, c.c_size_t, c.c_size_t, _P, _P, _P),
    "edgekv_choose": (_P, _P, _P, _P, c.c_size_t, _P, _P),
    "edgekv_wo_norm": (_P, _P, c.c_uint32, c.c_uint32, _P),
    "edgekv_cache_params_for": (_P, c.c_uint32, c.c_int32, _P),
    "edgekv_cache_open": (_P, _P, _P),
    "edgekv_cache_clear": (_P,),
    "edgekv_cache_feed": (_P, _P, c.c_size_t, c.c_int32),
    "edgekv_cache_probe": (_P, _P, c.c_size_t),
    "edgekv_cache_compact": (_P, _P, _P),
    "edgekv_cache_positions": (_P, c.c_uint32, c.c_uint32, _P),
    "edgekv_cache_read": (_P, c.c_uint32, c.c_uint32, c.c_int32, _P, c.c_size_t, _P),
    "edgekv_cache_queries": (_P, c.c_uint32, c.c_int32, _P, _P, _P, _P),
}

# name -> (result type, argument types): calls that cannot fail
_QUERIES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgekv_abi_version": (c.c_uint32, ()),
    "edgekv_status_name": (c.c_char_p, (c.c_int,)),
    "edgekv_cache_free": (None, (_P,)),
    "edgekv_cache_estimate_bytes": (c.c_uint64, (_P, _P)),
    "edgekv_cache_bytes": (c.c_uint64, (_P,)),
    "edgekv_cache_n_cells": (c.c_uint32, (_P,)),
    "edgekv_cache_n_past": (c.c_int32, (_P,)),
}


def library_path() -> Path:
    """Where the native library lies. An editable install spreads the package over two folders."""
    name = {"win32": "llama.dll", "darwin": "libllama.dylib"}.get(sys.platform, "libllama.so")
    for folder in edgekv.__path__:
        path = Path(folder) / "_lib" / name
        if path.is_file():
            return path
    raise NativeError(f"the native library {name} is not beside the package; install edgekv again, with a C++ compiler")


@functools.cache
def library() -> c.CDLL:
    """Load the native library and declare its calls. Raises NativeError when it is absent or of another version."""
    path = library_path()
    try:
        lib = c.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"{path} does not load: {error}; build edgekv again on this machine") from error
    for name, (result, arguments) in _QUERIES.items():
        getattr(lib, name).restype = result
        getattr(lib, name).argtypes = arguments
    for name, arguments in _CALLS.items():
        getattr(lib, name).restype = c.c_int
        getattr(lib, name).argtypes = arguments + _ERR
    found = lib.edgekv_abi_version()
    if found != ABI_VERSION:
        raise NativeError(f"{path} has ABI version {found}, but this package needs {ABI_VERSION}; install edgekv again")
    return lib


@functools.cache
def bindings() -> ModuleType:
    """The low-level llama_cpp bindings, on edgekv's own library.

    Raises NativeError when they are already imported on another library.
    """
    library()
    folder = library_path().parent
    if "llama_cpp.llama_cpp" not in sys.modules:
        _import_low_level(folder)
    low_level = sys.modules["llama_cpp.llama_cpp"]
    if Path(low_level._base_path) != folder:
        raise NativeError(
            f"llama_cpp is already imported on {low_level._base_path}, but edgekv needs it on {folder}; "
            f"import edgekv's runtime first, or set LLAMA_CPP_LIB_PATH={folder}"
        )
    return low_level


def _import_low_level(folder: Path) -> None:
    """Import llama_cpp.llama_cpp alone: the package's own __init__ also loads its high-level part, about 7 MiB.

    The package is stood in for only meanwhile, so a later `import llama_cpp` is a whole one, on the same library.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        raise NativeError("the package llama-cpp-python is not installed; install edgekv again")
    stand_in = ModuleType("llama_cpp")
    stand_in.__path__ = list(spec.submodule_search_locations or [])
    before = os.environ.get("LLAMA_CPP_LIB_PATH")
    os.environ["LLAMA_CPP_LIB_PATH"] = str(folder)
    sys.modules["llama_cpp"] = stand_in
    try:
        importlib.import_module("llama_cpp.llama_cpp")
    finally:
        del sys.modules["llama_cpp"]
        if before is None:
            del os.environ["LLAMA_CPP_LIB_PATH"]
        else:
            os.environ["LLAMA_CPP_LIB_PATH"] = before


def call(name: str, *arguments: Any) -> None:
    """Call a function that returns a status; raise the exception of a status that is not OK."""
    err = c.create_string_buffer(ERR_SIZE)
    status = getattr(library(), name)(*arguments, err, ERR_SIZE)
    if status != 0:
        raise error_of(status, err.value.decode(errors="replace"))


def error_of(status: int, message: str) -> EdgeKVError:
    """The exception of a status. Protected cells beyond the budget have an error of their own."""
    if status == 1 and "protected cells exceed" in message:
        return BudgetError(message)
    kind = STATUS_ERRORS.get(status, NativeError)
    name = library().edgekv_status_name(status).decode()
    return kind(message if kind is not NativeError else f"{name}: {message}")
