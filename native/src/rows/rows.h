// Rows of one head's keys or values, read as float32 whatever their storage type.
#pragma once

#include "edgekv.h"
#include "kernels/row_types.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

class RopeUndo;

class Rows {
  public:
    // Throws Error when the type is not one a cache may have, or dim is not whole blocks of it.
    // With `undo` the rows are keys, which RoPE turned at positions (n,), and are read as they were before; not rotated either.
    explicit Rows(const edgekv_rows & rows, const RopeUndo * undo = nullptr, const int32_t * positions = nullptr);

    size_t   n() const { return n_; }
    uint32_t dim() const { return dim_; }
    uint32_t rotation() const { return undo_ != nullptr ? 0 : rotation_; } // of rows as they are read

    // Write row i, dim() float32 values, to dst.
    void read(size_t i, float * dst) const { read(i, 1, dst); }

    // Write rows [first, first + n), (n, dim()) float32 values, to dst. Adjacent rows are converted at once.
    void read(size_t first, size_t n, float * dst) const;

  private:
    const char *    data_;
    size_t          n_;
    uint32_t        dim_;
    uint32_t        rotation_;
    uint64_t        stride_;
    bool            adjacent_;
    ggml_to_float_t convert_;
    const RopeUndo * undo_;
    const int32_t *  positions_;
};

// Write rows to dst, adjacent, as another type stores them, Hadamard-rotated in runs of `rotation` elements; 0 = as they are.
// Throws Error if that type has no such rows, or dst is too small.
void convert(const Rows & rows, int32_t type, uint32_t rotation, void * dst, size_t dst_size);

} // namespace edgekv
