"""The tensor types of ggml: values and bytes of a block."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A type of tensors. A row is a whole number of blocks: `block_values` values in `block_bytes` bytes each.

    is_weight  ggml multiplies activations with matrices of this type
    """

    name: str
    block_values: int
    block_bytes: int
    is_weight: bool = True

    def n_bytes(self, n_values: int) -> int:
        """Bytes of `n_values` values, a multiple of `block_values`."""
        return n_values // self.block_values * self.block_bytes


# Numbered as in `enum ggml_type`. The numbers missing here are types that llama.cpp dropped.
GGML_TYPES = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    9: GgmlType("Q8_1", 32, 36, is_weight=False),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    15: GgmlType("Q8_K", 256, 292, is_weight=False),
    16: GgmlType("IQ2_XXS", 256, 66),
    17: GgmlType("IQ2_XS", 256, 74),
    18: GgmlType("IQ3_XXS", 256, 98),
    19: GgmlType("IQ1_S", 256, 50),
    20: GgmlType("IQ4_NL", 32, 18),
    21: GgmlType("IQ3_S", 256, 110),
    22: GgmlType("IQ2_S", 256, 82),
    23: GgmlType("IQ4_XS", 256, 136),
    24: GgmlType("I8", 1, 1, is_weight=False),
    25: GgmlType("I16", 1, 2, is_weight=False),
    26: GgmlType("I32", 1, 4, is_weight=False),
    27: GgmlType("I64", 1, 8, is_weight=False),
    28: GgmlType("F64", 1, 8, is_weight=False),
    29: GgmlType("IQ1_M", 256, 56),
    30: GgmlType("BF16", 1, 2),
    34: GgmlType("TQ1_0", 256, 54),
    35: GgmlType("TQ2_0", 256, 66),
    39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
    41: GgmlType("Q1_0", 128, 18),
    42: GgmlType("Q2_0", 64, 18),
}

TYPE_NUMBERS = {known.name: number for number, known in GGML_TYPES.items()}
