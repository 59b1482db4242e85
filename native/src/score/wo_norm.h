// norm1(V W_O), how far a value can move a layer's output (CriticalKV, arXiv:2502.03805, Algorithm 1).
#pragma once

#include "rows/rows.h"
#include "score/scratch.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

// The norms of a few values at a time, by W_O in slices of its rows (one row an output, one column a value element).
// Values are those that a KV head stores, or those that each query head makes of a latent by its W_V.
// Uses scratch.wo_values, wo_latents, wo_slice and rows.
class WoNorm {
  public:
    static constexpr size_t n_at_once = 128;             // values of each KV head
    static constexpr size_t n_slice   = 12;  // rows of W_O; kernels take as many at once

    // n_group: query heads of one KV head, of all W_O that are counted; latent: of one KV head
    WoNorm(size_t dim, size_t n_head_kv, size_t n_group, Scratch & scratch, bool latent = false);

    void begin();                                                   // forget earlier values
    void put(size_t g, size_t i, const Rows & values, size_t cell); // value i of KV head g, or its latent

    // Make values [0, n) of their latents, by rows [first, first + w_v.n()) of W_V: as many a head as a value has elements.
    void decompress(const Rows & w_v, size_t first, size_t n);

    // Count the outputs of some or all rows of a W_O: n_group query heads of each KV head, from its first-th on.
    void add(const Rows & w_o, size_t first, size_t n_group, size_t n_values);

    void take(size_t g, size_t n, float * mean) const; // of the norms of values [0, n) of KV head g, over its query heads

  private:
    size_t  n_panels() const { return latent_ ? n_group_ : n_head_kv_; } // heads that have values of their own
    float * panel(size_t p, size_t i) const;
    float * norms(size_t g) const;

    size_t    dim_;
    size_t    n_head_kv_;
    size_t    n_group_;
    bool      latent_;
    Scratch & scratch_;
};

// Add what WoNorm needs to a size of scratch. n_panels: heads that have values of their own; rank: elements of a latent.
ScratchSize wo_norm_scratch(ScratchSize size, size_t n_panels, size_t dim, size_t n_columns, size_t rank = 0);

} // namespace edgekv
