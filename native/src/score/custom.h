// A scorer of the host's own: the arrays of one layer, or of a run of its heads, as it is given them.
#pragma once

#include "edgekv.h"

#include <cstddef>
#include <cstdint>
#include <vector>

struct edgekv_cache;

namespace edgekv {

struct CustomArrays {
    std::vector<float>   keys;      // (n_head_kv, n, head_dim_k)
    std::vector<float>   values;    // (n_head_kv, n, head_dim_v)
    std::vector<float>   queries;   // (n_head, n_rows, head_dim_k)
    std::vector<int32_t> rows;      // (n_rows,) positions of the queries
    std::vector<int32_t> positions; // (n_head_kv, n)
    std::vector<float>   scores;    // (n_head_kv, n)
    std::vector<float>   by_cell;   // (n_head_kv, n_cells_max) the scores of a whole layer, indexed by cell
    size_t               n_cells_max = 0;

    float * by_cell_of(uint32_t g) { return by_cell.empty() ? nullptr : by_cell.data() + g * n_cells_max; }

    void reserve(const edgekv_shape & shape, const edgekv_cache_params & params);

    static size_t bytes(const edgekv_shape & shape, const edgekv_cache_params & params);

  private:
    template <typename F> void each(const edgekv_shape & shape, const edgekv_cache_params & params, F f);
};

} // namespace edgekv
