// How rows are stored: as some type, and rotated or not.
#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

inline size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

// How rows of an enum ggml_type are read and written as float32. Throw Error when the type is not one a cache may have.
ggml_to_float_t   row_to_float(int32_t type);
ggml_from_float_t row_from_float(int32_t type);

// Undo (or do: it is its own inverse) the orthonormal Hadamard rotation of a row, in runs of `run` elements.
void rotate_hadamard(float * row, uint32_t dim, uint32_t run);

} // namespace edgekv
