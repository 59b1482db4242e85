// The scores made of attention: h2o, tova, snapkv, ahakv.
#include "hooks/status.h"
#include "kernels/kernels.h"
#include "score/attention.h"
#include "score/score.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

namespace {

// gbar = avgpool(norm2(V)^2) over its largest (AhaKV eq. 13 to 15).
void value_prior(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * prior) {
    const Rows & values = *cells.values;
    if (cells.of_values != nullptr) {
        std::copy_n(cells.of_values, values.n(), prior);
    } else {
        each_few(values, scratch, [&](size_t first, size_t n, const float * rows) {
            kernels().squares(rows, n, values.dim(), prior + first);
        });
    }
    pool(EDGEKV_POOL_AVG, policy.kernel, cells.order, values.n(), scratch, prior);
    const float most = values.n() > 0 ? *std::max_element(prior, prior + values.n()) : 0.0f;
    for (size_t j = 0; j < values.n(); ++j) {
        prior[j] = most == 0.0f ? 1.0f : prior[j] / most; // a NaN stays one
    }
}

// The attention that each cell gets from all rows: what a device has added up, or what the host does.
void add_up(const Cells & cells, size_t n_rows, const float * gains, Scratch & scratch, float * scores) {
    if (cells.given != nullptr) {
        std::copy_n(cells.given, cells.keys.n(), scores);
    } else {
        sum_attention(cells.keys, cells.positions, *cells.queries, n_rows, gains, scratch, scores);
    }
}

// SnapKV's scores. It pools the cells before its window: the window's attention to itself would leak into its neighbours.
void score_window(const edgekv_policy & policy, const Cells & cells, size_t n_rows, Scratch & scratch, float * scores) {
    const edgekv_queries & queries = *cells.queries;
    const size_t           n       = cells.keys.n();
    const int32_t          first   = n_rows > 0 ? queries.positions[queries.n_rows - n_rows] : INT32_MAX;
    const auto             end     = std::partition_point(cells.order, cells.order + n,
                                                          [&](uint32_t cell) { return cells.positions[cell] < first; });
    const size_t           n_before  = end - cells.order;
    const bool             largest   = traits_of(policy).largest;
    const bool             pool_rows = policy.pool_rows != 0 && policy.kernel > 1;
    if (largest && cells.given != nullptr) {
        std::copy_n(cells.given, n, scores);
    } else if (largest || pool_rows) {
        aggregate_attention(cells.keys, cells.positions, queries, n_rows,
                      { largest, policy.pool, pool_rows ? policy.kernel : 1, cells.order, n_before }, scratch, scores);
    } else {
        add_up(cells, n_rows, nullptr, scratch, scores);
        for (size_t j = 0; j < n; ++j) {
            scores[j] /= static_cast<float>(std::max<size_t>(1, n_rows));
        }
    }
    if (policy.kernel > 1 && !pool_rows) {
        pool(policy.pool, policy.kernel, cells.order, n_before, scratch, scores);
    }
}

} // namespace

void step_gains(const edgekv_policy & policy, const edgekv_queries & queries, size_t n_rows, uint32_t budget, float * gains) {
    const double  dim  = queries.dim;
    const int32_t last = n_rows > 0 ? queries.positions[queries.n_rows - 1] : 0;
    for (size_t w = 0; w < n_rows; ++w) {
        const double seen  = queries.n_seen - (last - queries.positions[queries.n_rows - n_rows + w]);
        const double grown = std::max(0.0, std::log(std::max(seen, 1.0) / budget));
        const double gain  = std::sqrt(2.0 * grown / dim);

        gains[w] = static_cast<float>(policy.flags & EDGEKV_AHAKV_FLOOR ? std::max<double>(gain, queries.scale) : gain);
    }
}

void score_attention(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * scores,
                     float * accumulated) {
    const edgekv_queries & queries = *cells.queries;
    const size_t           n       = cells.keys.n();
    const Traits           traits  = traits_of(policy);
    const size_t           n_rows  = std::min(queries.n_rows, traits.rows_read(queries.n_rows));
    if (traits.sharpened) {
        step_gains(policy, queries, n_rows, budget, scratch.gains.data());
    }
    if (policy.base == EDGEKV_BASE_SNAPKV) {
        score_window(policy, cells, n_rows, scratch, scores);
    } else {
        add_up(cells, n_rows, traits.sharpened ? scratch.gains.data() : nullptr, scratch, scores);
        for (size_t j = 0; traits.accumulates && cells.accumulated != nullptr && j < n; ++j) {
            scores[j] += cells.accumulated[j];
        }
    }
    if (traits.accumulates && accumulated != nullptr) {
        std::copy_n(scores, n, accumulated);
    }
    if (traits.value_prior) {
        float * prior = scratch.prior.data();
        value_prior(policy, cells, scratch, prior);
        for (size_t j = 0; j < n; ++j) {
            scores[j] *= prior[j];
        }
    }
}

} // namespace edgekv
