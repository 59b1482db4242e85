"""ggml's calls about devices."""

from __future__ import annotations

import ctypes as c
import functools
import threading

from edgekv.errors import NativeError

from . import library, structs

KINDS = {0: "cpu", 1: "gpu", 2: "integrated gpu", 3: "accelerator"}  # enum ggml_backend_dev_type
GPUS = (1, 2)
MATRIX = 64  # rows and columns of a product that no kernel for few columns takes


def has_gpu() -> bool:
    """Return True if this build can put layers on a device."""
    return any(_is_gpu(device) for device in all_devices())


def all_devices() -> list[int]:
    """Return the devices that ggml lists, with the devices of servers."""
    ggml = functions()
    return [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]


def backend_of(device: int) -> str:
    """Return the name of the part of ggml that drives a device, such as "CUDA"."""
    ggml = functions()
    name: bytes = ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(device))
    return name.decode()


def _is_gpu(device: int) -> bool:
    return functions().ggml_backend_dev_type(device) in GPUS


@functools.cache
def start_gpus() -> int:
    """Start this machine's GPUs, once in a process, by a small product on each; returns their number.

    The driver keeps the memory of this process that it takes for that, so a plan can count it.
    """
    gpus = [device for device in all_devices() if _is_gpu(device) and backend_of(device) != "RPC"]
    for device in gpus:
        _multiply(device)
    return len(gpus)


def _multiply(device: int) -> None:
    """Multiply two matrices of no particular numbers, which loads a device's library for products."""
    ggml = functions()
    backend = ggml.ggml_backend_dev_init(device, None)
    if not backend:  # loading a model says why
        return
    context = ggml.ggml_init(_InitParams(1 << 20, None, True))
    matrices = [ggml.ggml_new_tensor_2d(context, structs.F32, MATRIX, MATRIX) for _ in range(2)]
    graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(graph, ggml.ggml_mul_mat(context, *matrices))
    buffer = ggml.ggml_backend_alloc_ctx_tensors(context, backend)
    if buffer:
        ggml.ggml_backend_graph_compute(backend, graph)
        ggml.ggml_backend_buffer_free(buffer)
    ggml.ggml_free(context)
    ggml.ggml_backend_free(backend)


class _InitParams(c.Structure):
    """struct ggml_init_params"""

    _fields_ = (("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool))


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
    with _adding:
        if address not in _added:
            _added.add(address)
            ggml.ggml_backend_register(registered)
    n_devices = ggml.ggml_backend_reg_dev_count(registered)
    lent = (ggml.ggml_backend_reg_dev_get(registered, i) for i in range(n_devices))
    return [ggml.ggml_backend_dev_name(device).decode() for device in lent]


_adding = threading.Lock()
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
        ("ggml_backend_dev_init", pointer, (pointer, c.c_char_p)),
        ("ggml_backend_free", None, (pointer,)),
        ("ggml_init", pointer, (_InitParams,)),
        ("ggml_free", None, (pointer,)),
        ("ggml_new_tensor_2d", pointer, (pointer, c.c_int, c.c_int64, c.c_int64)),
        ("ggml_mul_mat", pointer, (pointer, pointer, pointer)),
        ("ggml_new_graph", pointer, (pointer,)),
        ("ggml_build_forward_expand", None, (pointer, pointer)),
        ("ggml_backend_alloc_ctx_tensors", pointer, (pointer, pointer)),
        ("ggml_backend_graph_compute", c.c_int, (pointer, pointer)),
        ("ggml_backend_buffer_free", None, (pointer,)),
    ):
        getattr(ggml, name).restype = result
        getattr(ggml, name).argtypes = arguments
    return ggml
