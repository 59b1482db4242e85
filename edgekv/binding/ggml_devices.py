"""ggml's calls about devices."""

from __future__ import annotations

import ctypes as c
import functools

from edgekv.errors import NativeError

from . import library

KINDS = {0: "cpu", 1: "gpu", 2: "integrated gpu", 3: "accelerator"}  # enum ggml_backend_dev_type
GPUS = (1, 2)


def has_gpu() -> bool:
    """Return True if this build can put layers on a device."""
    ggml = functions()
    return any(
        ggml.ggml_backend_dev_type(ggml.ggml_backend_dev_get(i)) in GPUS for i in range(ggml.ggml_backend_dev_count())
    )


def add_server(address: str) -> list[str]:
    """Add the devices of a server, so that layers can be put there; returns their names, such as "RPC0".

    ggml's client ends this process if the server is absent or goes later: ask the server first, in a worker process.
    Raises NativeError in a build without RPC.
    """
    ggml = functions()
    try:
        add = ggml.ggml_backend_rpc_add_server
    except AttributeError:
        raise NativeError("this build has no RPC; build edgekv with CMAKE_ARGS=-DEDGEKV_RPC=ON") from None
    add.restype, add.argtypes = c.c_void_p, (c.c_char_p,)
    registered = add(address.encode())
    if address not in _added:
        _added.add(address)
        ggml.ggml_backend_register(registered)
    n_devices = ggml.ggml_backend_reg_dev_count(registered)
    lent = (ggml.ggml_backend_reg_dev_get(registered, i) for i in range(n_devices))
    return [ggml.ggml_backend_dev_name(device).decode() for device in lent]


_added: set[str] = set()  # servers whose devices ggml lists in this process


@functools.cache
def functions() -> c.CDLL:
    """Return the library, with ggml's calls about devices declared."""
    ggml = library.load()
    pointer = c.c_void_p
    for name, result, arguments in (
        ("ggml_backend_dev_count", c.c_size_t, ()),
        ("ggml_backend_dev_get", pointer, (c.c_size_t,)),
        ("ggml_backend_dev_by_type", pointer, (c.c_int,)),
        ("ggml_backend_dev_name", c.c_char_p, (pointer,)),
        ("ggml_backend_dev_description", c.c_char_p, (pointer,)),
        ("ggml_backend_dev_type", c.c_int, (pointer,)),
        ("ggml_backend_dev_memory", None, (pointer, pointer, pointer)),
        ("ggml_backend_dev_backend_reg", pointer, (pointer,)),
        ("ggml_backend_reg_name", c.c_char_p, (pointer,)),
        ("ggml_backend_reg_dev_count", c.c_size_t, (pointer,)),
        ("ggml_backend_reg_dev_get", pointer, (pointer, c.c_size_t)),
        ("ggml_backend_register", None, (pointer,)),
    ):
        getattr(ggml, name).restype = result
        getattr(ggml, name).argtypes = arguments
    return ggml
