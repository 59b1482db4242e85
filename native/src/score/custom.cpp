#include "score/custom.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

template <typename F> void CustomArrays::each(const edgekv_shape & shape, const edgekv_cache_params & params, F f) {
    if (params.custom_reads == 0) {
        return;
    }
    const size_t n_cells = size_t(shape.n_head_kv_max) * shape.n_cells_max;
    const size_t n_rows  = std::max(params.n_query_rows, params.n_probe_rows);
    f(keys, params.custom_reads & EDGEKV_READS_KEYS ? n_cells * shape.head_dim_k : 0);
    f(values, params.custom_reads & EDGEKV_READS_VALUES ? n_cells * shape.head_dim_v : 0);
    f(queries, params.custom_reads & EDGEKV_READS_QUERIES ? shape.n_head_max * n_rows * shape.head_dim_k : 0);
    f(rows, n_rows);
    f(positions, n_cells);
    f(scores, n_cells);
    f(by_cell, n_cells);
}

void CustomArrays::reserve(const edgekv_shape & shape, const edgekv_cache_params & params) {
    n_cells_max = shape.n_cells_max;
    each(shape, params, [](auto & vector, size_t n) { vector.resize(n); });
}

size_t CustomArrays::bytes(const edgekv_shape & shape, const edgekv_cache_params & params) {
    size_t       sum = 0;
    CustomArrays empty;
    empty.each(shape, params, [&](auto & vector, size_t n) { sum += n * sizeof(vector[0]); });
    return sum;
}

} // namespace edgekv
