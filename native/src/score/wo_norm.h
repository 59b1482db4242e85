// norm1(V W_O), how far a value can move a layer's output (CriticalKV, arXiv:2502.03805, Algorithm 1).
#pragma once

#include "cache/rows.h"
#include "score/scratch.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

// The norms of a few values at a time, by W_O in slices of its rows (one row an output, one column a value element).
// Uses scratch.wo_values, wo_slice and rows.
class WoNorm {
  public:
    static constexpr size_t n_at_once = 128;             // values of each KV head
    static constexpr size_t n_slice   = 12;  // rows of W_O; kernels take as many at once

    // n_columns: of W_O; n_group: query heads of one KV head; first: the first query head
    WoNorm(size_t n_columns, size_t dim, size_t n_head_kv, size_t n_group, size_t first, Scratch & scratch);

    void begin();                                                   // forget earlier values
    void put(size_t g, size_t i, const Rows & values, size_t cell); // value i of KV head g
    void add(const Rows & w_o, size_t n_values);                    // count the outputs of some or all rows of W_O
    void take(size_t g, size_t n, float * norms) const;             // norms of values [0, n) of KV head g

  private:
    float * panel(size_t g, size_t i) const;
    float * slice_row(size_t i);
    void    add_slice(size_t n_rows, size_t n_values);

    size_t    n_columns_;
    size_t    dim_;
    size_t    n_head_kv_;
    size_t    n_group_;
    size_t    first_;
    Scratch & scratch_;
};

// Add what WoNorm needs to a size of scratch.
ScratchSize wo_norm_scratch(ScratchSize size, size_t n_head_kv, size_t dim, size_t n_columns);

} // namespace edgekv
