"""onnxruntime and onnx, imported when a graph is loaded, and set to use little memory."""

from __future__ import annotations

import importlib
from typing import Any

from edgekv.errors import PolicyError
from edgekv.extras import install_command

ERRORS_ONLY = 3


def required(package: str) -> Any:
    """Import a package of the `onnx` extra. Raises PolicyError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PolicyError(f"ONNX graphs need the package {package} ({error}); {install_command('onnx')}") from error


def new_session(model: str | bytes) -> Any:
    """Open a session on a file or a serialised model. It allocates only what a run needs, and frees it after the run.

    It runs on the processor, on the calling thread alone: threads of its own would spin on and compete with ggml's.
    Raises PolicyError if onnxruntime is not installed, and onnxruntime's own errors for a model that it cannot run.
    """
    ort = required("onnxruntime")
    ort.disable_telemetry_events()
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.inter_op_num_threads = 1
    settings.enable_cpu_mem_arena = False
    settings.enable_mem_pattern = False
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # adds no buffers of its own
    settings.log_severity_level = ERRORS_ONLY
    return ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
