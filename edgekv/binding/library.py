"""The native library: the functions of the headers in `native/include`; its structs are in `structs.py`.

The library holds llama.cpp, ggml and edgekv, and the `llama_cpp` bindings are made to load the same file.
Nothing is loaded until `load()` or `bindings()` is called. A status other than OK becomes an exception here.
"""

from __future__ import annotations

import ctypes as c
import functools
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from edgekv.errors import (
    ArchiveError,
    BudgetError,
    ConfigError,
    EdgeKVError,
    InvalidModelError,
    NativeError,
    UnsupportedModelError,
)

from . import plan_structs, structs

ABI_VERSION = 29
ERR_SIZE = 2048


class OverCeiling(NativeError):  # noqa: N818  (`edgekv.planning` makes the error that users see)
    """No plan fits its limits."""


STATUS_ERRORS: dict[int, type[EdgeKVError]] = {
    1: ConfigError,  # EDGEKV_STATUS_INVALID_ARGUMENT
    2: NativeError,  # EDGEKV_STATUS_INVALID_STATE
    3: NativeError,  # EDGEKV_STATUS_NOT_FINITE
    4: UnsupportedModelError,  # EDGEKV_STATUS_UNSUPPORTED
    5: InvalidModelError,  # EDGEKV_STATUS_MODEL_INVALID
    6: NativeError,  # EDGEKV_STATUS_OUT_OF_MEMORY
    7: NativeError,  # EDGEKV_STATUS_INTERNAL
    8: OverCeiling,  # EDGEKV_STATUS_OVER_CEILING
    9: ArchiveError,  # EDGEKV_STATUS_ARCHIVE
}

# Messages of llama.cpp and of the allocator if the system refuses memory.
REFUSED_MEMORY = (
    "insufficient memory",
    "std::bad_alloc",
    "annot allocate memory",
    "allocate buffer",
    "failed to map segment",
)


_importing = threading.RLock()  # held by the thread that imports the bindings

_P = c.c_void_p  # an opaque handle or an array
_ERR = (c.c_char_p, c.c_size_t)

# name -> argument types, without the trailing err, err_size; each function returns a status
_CALLS: dict[str, tuple[Any, ...]] = {
    "edgekv_model_load": (c.c_char_p, _P, c.c_uint32, _P),
    "edgekv_model_streaming": (_P, _P),
    "edgekv_layout_for": (*[c.c_uint32] * 5, _P),
    "edgekv_context_params_for": (_P, c.c_int32, *[c.c_uint32] * 4, _P),
    "edgekv_context_new": (_P, _P, _P, _P),
    "edgekv_context_shape": (_P, _P),
    "edgekv_context_rope": (_P, c.c_uint32, _P, _P, _P, _P),
    "edgekv_context_memory": (_P, _P),
    "edgekv_context_parts": (_P, _P, _P),
    "edgekv_parts_stream": (_P, c.c_uint32, c.c_uint32, _P, _P),
    "edgekv_context_devices": (_P, _P, _P, c.c_size_t, _P),
    "edgekv_policy_parse": (c.c_char_p, _P),
    "edgekv_score": (_P, _P, _P, c.c_uint32, _P),
    "edgekv_select": (_P, _P, c.c_size_t, c.c_size_t, _P, _P, _P),
    "edgekv_choose": (_P, _P, _P, _P, c.c_uint32, c.c_uint32, _P, _P),
    "edgekv_allot": (_P, _P, c.c_size_t, _P, c.c_uint32, c.c_uint32, _P),
    "edgekv_layer_budgets": (_P, c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint32, _P),
    "edgekv_wo_norm": (_P, _P, c.c_uint32, c.c_uint32, _P),
    "edgekv_rope_turn": (_P, _P, c.c_uint32, c.c_uint32, c.c_int32, _P),
    "edgekv_cache_params_for": (_P, c.c_uint32, c.c_int32, _P),
    "edgekv_cache_open": (_P, _P, _P),
    "edgekv_cache_check": (_P, _P),
    "edgekv_cache_clear": (_P,),
    "edgekv_cache_feed": (_P, _P, c.c_size_t, c.c_int32),
    "edgekv_cache_feed_together": (_P, c.c_size_t),
    "edgekv_cache_feed_draft": (_P, c.c_int32, _P, c.c_size_t),
    "edgekv_cache_accept": (_P,),
    "edgekv_cache_drop": (_P, c.c_uint32),
    "edgekv_cache_probe": (_P, _P, c.c_size_t, _P, c.c_size_t),
    "edgekv_cache_compact": (_P, _P, _P),
    "edgekv_cache_allow": (_P, c.c_uint32),
    "edgekv_cache_holds": (_P, _P, c.c_size_t, _P),
    "edgekv_cache_head_cells": (_P, c.c_uint32, c.c_uint32, _P, _P),
    "edgekv_cache_positions": (_P, c.c_uint32, c.c_uint32, _P),
    "edgekv_cache_rope_positions": (_P, c.c_uint32, c.c_uint32, _P),
    "edgekv_cache_read": (_P, c.c_uint32, c.c_uint32, c.c_int32, _P, c.c_size_t, _P),
    "edgekv_cache_queries": (_P, c.c_uint32, c.c_int32, _P, _P, _P, _P),
    "edgekv_cache_save": (_P, _P, c.c_uint64, _P, c.c_size_t),
    "edgekv_cache_restore": (_P, _P, c.c_size_t),
    "edgekv_cache_restore_numbers": (_P, _P, c.c_size_t),
    "edgekv_cache_restore_rows": (_P, _P, c.c_uint64, _P, c.c_size_t),
    "edgekv_cache_restore_archived": (_P, _P),
    "edgekv_archive_open": (_P, c.c_int32, c.c_int32, c.c_uint64, _P),
    "edgekv_archive_read": (_P, c.c_int32, c.c_uint64, c.c_int32, c.c_int32, _P),
    "edgekv_archive_copy": (_P, _P),
    "edgekv_archive_branch": (_P, _P, c.c_int32, c.c_int32, c.c_uint64),
    "edgekv_archive_resume": (_P, c.c_int32, c.c_uint64, c.c_int32, c.c_int32, c.c_uint64),
    "edgekv_archive_append": (_P, _P),
    "edgekv_archive_take": (_P, _P, c.c_uint32),
    "edgekv_archive_write": (_P,),
    "edgekv_cache_recall": (_P, _P, _P, _P),
    "edgekv_recall_begin": (_P, _P, _P, _P, _P),
    "edgekv_recall_scan": (_P, c.c_uint32, _P),
    "edgekv_recall_finish": (_P, _P, _P),
    "edgekv_cache_refill": (_P, _P, c.c_uint32),
    "edgekv_product_measure": (c.c_int32, c.c_uint32, c.c_uint32, c.c_uint32, _P),
    "edgekv_rows_convert": (_P, c.c_int32, c.c_uint32, _P, c.c_size_t),
    "edgekv_process_bytes": (_P,),
    "edgekv_plan_choose": (_P, plan_structs.SettingSpare, _P, _P),
    "edgekv_plan_largest": (_P, plan_structs.SettingSpare, _P, _P),
    "edgekv_plan_make": (c.c_char_p, _P, _P),
    "edgekv_plan_open": (c.c_char_p, _P, _P, _P, _P),
    "edgekv_plan_choice": (_P, c.c_uint32, c.c_uint32, _P),
    "edgekv_planner_new": (c.c_char_p, _P, _P),
    "edgekv_planner_check": (_P, _P, _P),
    "edgekv_planner_choose": (_P, _P, _P),
    "edgekv_planner_estimate": (_P, _P, _P),
    "edgekv_planner_devices": (_P, _P, _P, _P, c.c_size_t, _P),
}

# name -> (result type, argument types): calls that cannot fail
_QUERIES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgekv_abi_version": (c.c_uint32, ()),
    "edgekv_status_name": (c.c_char_p, (c.c_int,)),
    "edgekv_rpc_limit_silence": (None, (c.c_uint32,)),
    "edgekv_cache_free": (None, (_P,)),
    "edgekv_cache_estimate_bytes": (c.c_uint64, (_P, _P)),
    "edgekv_cache_estimate_device_bytes": (c.c_uint64, (_P, _P)),
    "edgekv_cache_bytes": (c.c_uint64, (_P,)),
    "edgekv_cache_device_bytes": (c.c_uint64, (_P,)),
    "edgekv_cache_n_cells": (c.c_uint32, (_P,)),
    "edgekv_cache_n_free": (c.c_uint32, (_P,)),
    "edgekv_cache_n_droppable": (c.c_uint32, (_P,)),
    "edgekv_cache_n_heads": (c.c_uint32, (_P, c.c_uint32)),
    "edgekv_cache_n_query_heads": (c.c_uint32, (_P, c.c_uint32)),
    "edgekv_cache_n_past": (c.c_int32, (_P,)),
    "edgekv_cache_rope_past": (c.c_int32, (_P,)),
    "edgekv_cache_snapshot_bytes": (c.c_uint64, (_P, _P)),
    "edgekv_snapshot_estimate_bytes": (c.c_uint64, (_P, _P, c.c_uint32, _P)),
    "edgekv_archive_free": (None, (_P,)),
    "edgekv_archive_cut": (None, (_P, c.c_int32)),
    "edgekv_archive_begin": (c.c_int32, (_P,)),
    "edgekv_archive_end": (c.c_int32, (_P,)),
    "edgekv_archive_n_taken": (c.c_uint32, (_P,)),
    "edgekv_archive_written_bytes": (c.c_uint64, (_P,)),
    "edgekv_archive_segment_bytes": (c.c_uint64, (_P,)),
    "edgekv_archive_segment_size": (c.c_uint64, (_P,)),
    "edgekv_archive_place": (None, (_P, c.c_int32, _P, _P)),
    "edgekv_recall_needed": (c.c_size_t, (_P, _P)),
    "edgekv_recall_needed_positions": (None, (_P, _P)),
    "edgekv_recall_free": (None, (_P,)),
    "edgekv_archive_estimate_bytes": (c.c_uint64, (_P, c.c_uint32, c.c_uint32, c.c_uint32)),
    "edgekv_row_bytes": (c.c_uint64, (c.c_int32, c.c_uint32)),
    "edgekv_process_peak_bytes": (c.c_uint64, ()),
    "edgekv_plan_most_cells": (c.c_uint32, (_P, c.c_uint32)),
    "edgekv_planner_free": (None, (_P,)),
    **{f"{struct.c_name()}_init": (None, (_P, c.c_uint32)) for struct in structs.Input.__subclasses__()},
}


def library_path() -> Path:
    """Return the path of the native library: in the folder EDGEKV_LIB_PATH, or beside the package.

    An editable install spreads the package over two folders. Raises NativeError if there is no library.
    """
    name = {"win32": "llama.dll", "darwin": "libllama.dylib"}.get(sys.platform, "libllama.so")
    named = os.environ.get("EDGEKV_LIB_PATH")
    folders = [Path(named).resolve()] if named else [Path(folder) / "_lib" for folder in sys.modules["edgekv"].__path__]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    if named:
        raise NativeError(f"EDGEKV_LIB_PATH={named} holds no {name}; name the folder of a build, or unset it")
    raise NativeError(f"the native library {name} is not beside the package; install edgekv again, with a C++ compiler")


@functools.cache
def load() -> c.CDLL:
    """Load the native library and declare its calls. Raises NativeError when it is absent or of another version."""
    path = library_path()
    try:
        lib = c.CDLL(str(path))
    except OSError as error:
        if any(words in str(error) for words in REFUSED_MEMORY):
            raise _refused_memory(str(error)) from error
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
    """Return the low-level llama_cpp bindings, on edgekv's own library.

    Raises NativeError when they are already imported on another library.
    """
    load()
    folder = library_path().parent
    with _importing, _named_to_bindings(folder):
        low_level = _low_level()
    if Path(low_level._base_path) != folder:
        raise NativeError(
            f"llama_cpp is already imported on {low_level._base_path}, but edgekv needs it on {folder}; "
            f"import edgekv's runtime first, or set LLAMA_CPP_LIB_PATH={folder}"
        )
    return low_level


@contextmanager
def _named_to_bindings(folder: Path) -> Iterator[None]:
    """Have llama_cpp look for its library in this folder while it is imported in this block."""
    before = os.environ.get("LLAMA_CPP_LIB_PATH")
    os.environ["LLAMA_CPP_LIB_PATH"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LLAMA_CPP_LIB_PATH"]
        else:
            os.environ["LLAMA_CPP_LIB_PATH"] = before


def _low_level() -> ModuleType:
    """Return llama_cpp.llama_cpp without its package, whose __init__ also loads the high-level part, about 7 MiB.

    A later `import llama_cpp` takes the module from `sys.modules`. One of the program's own that is under way in
    another thread is waited for, and its module taken.
    """
    if "llama_cpp" not in sys.modules:
        package = importlib.util.find_spec("llama_cpp")
        if package is None:
            raise NativeError("the package llama-cpp-python is not installed; install edgekv again")
        for name in ("llama_cpp._ctypes_extensions", "llama_cpp.llama_cpp"):  # the second imports from the first
            if name not in sys.modules:
                sys.modules.setdefault(name, _executed(name, package.submodule_search_locations))
    return importlib.import_module("llama_cpp.llama_cpp")


def _executed(name: str, folders: Sequence[str] | None) -> ModuleType:
    """Execute a module in the folders of its package, which is not imported."""
    spec = next(filter(None, (finder.find_spec(name, folders) for finder in sys.meta_path)), None)
    if spec is None or spec.loader is None:
        raise NativeError(f"the package llama-cpp-python has no {name}; install edgekv again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(name: str, *arguments: Any) -> None:
    """Call a function that returns a status; raise the exception of a status that is not OK."""
    err = (c.c_char * ERR_SIZE)()  # takes a third of the time of `create_string_buffer`
    status = getattr(load(), name)(*arguments, err, ERR_SIZE)
    if status != 0:
        raise error_of(status, err.value.decode(errors="replace"))


def error_of(status: int, message: str) -> EdgeKVError:
    """Return the exception of a status. Protected cells beyond the budget have an error of their own."""
    if status == 1 and "protected cells exceed" in message:
        return BudgetError(message)
    if any(words in message for words in REFUSED_MEMORY):
        return _refused_memory(message.partition(";")[0])
    kind = STATUS_ERRORS.get(status, NativeError)
    name = load().edgekv_status_name(status).decode()
    return kind(message if kind is not NativeError else f"{name}: {message}")


def _refused_memory(reason: str) -> NativeError:
    return NativeError(
        f"the system gives this process no more memory: {reason}; raise the limit of the process (ulimit -v), end "
        "other programs, or give a smaller model"
    )
