"""ggml's calls about devices, and whether there is one for layers."""

from __future__ import annotations

import ctypes as c
import functools

from . import library

KINDS = {0: "cpu", 1: "gpu", 2: "integrated gpu", 3: "accelerator"}  # enum ggml_backend_dev_type
GPUS = (1, 2)


def has_gpu() -> bool:
    """Whether layers can be put on a device of this build."""
    ggml = functions()
    return any(
        ggml.ggml_backend_dev_type(ggml.ggml_backend_dev_get(i)) in GPUS for i in range(ggml.ggml_backend_dev_count())
    )


@functools.cache
def functions() -> c.CDLL:
    """The library, with ggml's calls about devices declared."""
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
    ):
        getattr(ggml, name).restype = result
        getattr(ggml, name).argtypes = arguments
    return ggml
