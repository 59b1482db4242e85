#include "score/wo_norm.h"

#include "score/kernels.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

// wo_values holds the panels of all KV heads, and behind them their norms so far
ScratchSize wo_norm_scratch(ScratchSize size, size_t n_head_kv, size_t dim, size_t n_columns) {
    size.wo_values = n_head_kv * WoNorm::n_at_once * (dim + 1);
    size.wo_slice  = WoNorm::n_slice * n_columns;
    return size;
}

WoNorm::WoNorm(size_t n_columns, size_t dim, size_t n_head_kv, size_t n_group, size_t first, Scratch & scratch) :
    n_columns_(n_columns), dim_(dim), n_head_kv_(n_head_kv), n_group_(n_group), first_(first), scratch_(scratch) {}

float * WoNorm::panel(size_t g, size_t i) const {
    return scratch_.wo_values.data() + (g * n_at_once + i / n_lanes * n_lanes) * dim_;
}

void WoNorm::begin() { std::fill(scratch_.wo_values.begin(), scratch_.wo_values.end(), 0.0f); }

// W_O was never rotated, so rotated values are turned back.
void WoNorm::put(size_t g, size_t i, const Rows & values, size_t cell) {
    float * row = scratch_.rows.data();
    values.read(cell, row);
    if (values.rotation() > 0) {
        rotate_hadamard(row, values.dim(), values.rotation());
    }
    float * column = panel(g, i) + i % n_lanes;
    for (size_t k = 0; k < dim_; ++k) {
        column[k * n_lanes] = row[k];
    }
}

float * WoNorm::slice_row(size_t i) { return scratch_.wo_slice.data() + i * n_columns_; }

void WoNorm::add(const Rows & w_o, size_t n_values) {
    for (size_t e = 0; e < w_o.n(); e += n_slice) {
        const size_t n_rows = std::min(n_slice, w_o.n() - e);
        for (size_t k = 0; k < n_rows; ++k) {
            w_o.read(e + k, slice_row(k));
        }
        add_slice(n_rows, n_values);
    }
}

void WoNorm::add_slice(size_t n_rows, size_t n_values) {
    float * norms = scratch_.wo_values.data() + n_head_kv_ * n_at_once * dim_;
    for (size_t h = 0; h < n_head_kv_ * n_group_; ++h) {
        const size_t g = h / n_group_;
        for (size_t i = 0; i < n_values; i += n_lanes) {
            kernels().add_norm1(slice_row(0) + (first_ + h) * dim_, n_columns_, n_rows, panel(g, i), dim_, norms + g * n_at_once + i);
        }
    }
}

void WoNorm::take(size_t g, size_t n, float * norms) const {
    const float * sums = scratch_.wo_values.data() + n_head_kv_ * n_at_once * dim_ + g * n_at_once;
    for (size_t i = 0; i < n; ++i) {
        norms[i] = sums[i] / static_cast<float>(n_group_);
    }
}

} // namespace edgekv
