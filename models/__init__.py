"""Names and headers of model files; weights are never read.

The makers of synthetic models are `edgekv.testing.models.tiny` and `edgekv.testing.models.shapes`, in a checkout.
"""

from __future__ import annotations

from .catalog import KnownModel, find_model, known_models
from .header import Header, TensorInfo, read_header

__all__ = ["Header", "KnownModel", "TensorInfo", "find_model", "known_models", "read_header"]
