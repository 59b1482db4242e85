#include "score/wo_norm.h"

#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

// wo_values holds the panels, and behind them the norms of all KV heads so far, which are no more
ScratchSize wo_norm_scratch(ScratchSize size, size_t n_panels, size_t dim, size_t n_columns, size_t rank) {
    size.wo_values  = n_panels * WoNorm::n_at_once * (dim + 1);
    size.wo_latents = WoNorm::n_at_once * rank;
    size.wo_slice   = WoNorm::n_slice * n_columns;
    return size;
}

WoNorm::WoNorm(size_t dim, size_t n_head_kv, size_t n_group, Scratch & scratch, bool latent) :
    dim_(dim), n_head_kv_(n_head_kv), n_group_(n_group), latent_(latent), scratch_(scratch) {}

float * WoNorm::panel(size_t p, size_t i) const {
    return scratch_.wo_values.data() + (p * n_at_once + i / n_lanes * n_lanes) * dim_;
}

float * WoNorm::norms(size_t g) const { return panel(n_panels(), 0) + g * n_at_once; }

void WoNorm::begin() { std::fill(scratch_.wo_values.begin(), scratch_.wo_values.end(), 0.0f); }

// W_O was never rotated, so rotated values are turned back.
void WoNorm::put(size_t g, size_t i, const Rows & values, size_t cell) {
    if (latent_) {
        values.read(cell, scratch_.wo_latents.data() + i * values.dim());
        return;
    }
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

void WoNorm::decompress(const Rows & w_v, size_t first, size_t n) {
    float * row = scratch_.rows.data();
    float   products[n_at_once];
    for (size_t r = 0; r < w_v.n(); ++r) {
        w_v.read(r, row);
        kernels().dots(scratch_.wo_latents.data(), n, row, w_v.dim(), products);
        const size_t h = (first + r) / dim_;
        const size_t k = (first + r) % dim_;
        for (size_t i = 0; i < n; ++i) {
            panel(h, i)[k * n_lanes + i % n_lanes] = products[i];
        }
    }
}

void WoNorm::add(const Rows & w_o, size_t first, size_t n_group, size_t n_values) {
    const size_t n_columns = w_o.dim();
    float *      slice     = scratch_.wo_slice.data();
    for (size_t e = 0; e < w_o.n(); e += n_slice) {
        const size_t n_rows = std::min(n_slice, w_o.n() - e);
        w_o.read(e, n_rows, slice);
        for (size_t h = 0; h < n_head_kv_ * n_group; ++h) {
            const size_t g = h / n_group;
            for (size_t i = 0; i < n_values; i += n_lanes) {
                kernels().add_norm1(slice + (first + h) * dim_, n_columns, n_rows, panel(latent_ ? h : g, i), dim_, norms(g) + i);
            }
        }
    }
}

void WoNorm::take(size_t g, size_t n, float * mean) const {
    for (size_t i = 0; i < n; ++i) {
        mean[i] = norms(g)[i] / static_cast<float>(n_group_);
    }
}

} // namespace edgekv
