// Memory of one thread for scoring; kept between calls so that compaction does not allocate.
#pragma once

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

struct ScratchSize {
    size_t n_cells;
    size_t dim;           // of a key or value, at most
    size_t n_window  = 0; // query heads of one KV head x rows, at most; 0 = no attention
    size_t n_rows    = 0; // rows of queries, at most
    size_t wo_values = 0; // values of one layer's KV heads whose norm1(V W_O) is computed at once, in floats
    size_t wo_latents = 0; // floats of latents that they are made of
    size_t wo_slice  = 0; // floats of a slice of W_O
    size_t wo_bytes  = 0; // bytes of a few rows of W_O or W_V, where they must be copied to be read
};

struct Scratch {
    static constexpr uint32_t n_columns = 8;  // elements of the keys whose medians are taken in one pass
    static constexpr size_t   n_rows    = 32; // rows that are read at once: few enough to stay near the processor

    std::vector<float>    norms;     // (n_cells,)
    std::vector<float>    scores;    // (n_cells,)
    std::vector<float>    prior;     // (n_cells,) second scores of a cell: a value prior, the second stage of a selection
    std::vector<uint32_t> moved_to;  // (n_cells,) where cells above the budget that stay are moved
    std::vector<float>    line;      // (n_columns, n_cells) scores in position order, or columns of the keys
    std::vector<double>   sums;      // (n_cells + 1,) running sums for pooling
    std::vector<float>    rows;      // (n_rows, dim)
    std::vector<float>    factors;   // (n_rows,)
    std::vector<float>    anchor;    // (dim,)
    std::vector<float>    keys;      // (n_cells, dim)
    std::vector<float>    panel;     // (dim, n_lanes) queries
    std::vector<float>    logits;    // (n_cells, n_lanes)
    std::vector<float>    weights;   // (n_cells, n_lanes)
    std::vector<float>    window;    // (n_window, dim) queries
    std::vector<int32_t>  positions; // (n_rows,) of the window
    std::vector<float>    gains;     // (n_rows,) scale of each row
    std::vector<float>    wo_values; // values in panels
    std::vector<float>    wo_latents;
    std::vector<float>    wo_slice;  // rows of W_O
    std::vector<char>     wo_bytes;  // rows of W_O or W_V as they are stored

    void reserve(const ScratchSize & size);

    size_t        held() const;                    // bytes held now
    static size_t bytes(const ScratchSize & size); // bytes held after reserve(size)

  private:
    // Call f(vector, elements after reserve) for each of them.
    template <typename F> void each(const ScratchSize & size, F f);
};

} // namespace edgekv
