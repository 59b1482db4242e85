#include "score/attention.h"

#include "hooks/status.h"
#include "kernels/kernels.h"
#include "score/score.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

void check(const edgekv_queries & queries, const Rows & keys) {
    require(queries.n_rows == 0 || (queries.data != nullptr && queries.positions != nullptr), "queries.data or .positions is NULL");
    require(queries.n_head > 0, "queries.n_head is 0");
    require(queries.dim == keys.dim(), "queries.dim differs from the keys'");
    require(std::isfinite(queries.scale) && queries.softcap >= 0.0f, "queries.scale is not finite, or softcap is negative");
    const auto is_finite = [](float sink) { return std::isfinite(sink); };
    require(queries.sinks == nullptr || std::all_of(queries.sinks, queries.sinks + queries.n_head, is_finite), "a sink is not finite");
}

// Add the attention of the newest n_rows rows of every query head, times `factor`, to scratch.weights (n, n_lanes), panel by
// panel; after each call after(its queries). False if a logit is not finite.
template <typename F>
static bool each_panel(const Rows & keys, const int32_t * positions, const edgekv_queries & queries, size_t n_rows,
                       const float * row_scales, float factor, Scratch & scratch, F after) {
    const size_t n   = keys.n();
    const size_t dim = keys.dim();
    keys.read(0, n, scratch.keys.data());
    std::fill_n(scratch.weights.data(), n * n_lanes, 0.0f);

    const size_t skipped = queries.n_rows - n_rows;
    const size_t n_all   = queries.n_head * n_rows;
    for (size_t first = 0; first < n_all; first += n_lanes) {
        float   factors[n_lanes] = {};
        float   sinks[n_lanes];
        int32_t limits[n_lanes];
        for (size_t i = 0; i < n_lanes; ++i) {
            const size_t  flat  = std::min(first + i, n_all - 1); // the last one again where the panel is not full; its factor is 0
            const size_t  row   = flat % n_rows;
            const float   scale = row_scales != nullptr ? row_scales[row] : queries.scale;
            const float * query = queries.data + (flat / n_rows * queries.n_rows + skipped + row) * dim;
            for (size_t k = 0; k < dim; ++k) {
                scratch.panel[k * n_lanes + i] = scale * query[k];
            }
            sinks[i]  = queries.sinks != nullptr ? queries.sinks[flat / n_rows] : -INFINITY;
            limits[i] = queries.positions[skipped + row];
            factors[i] = first + i < n_all ? factor : 0.0f;
        }
        if (!kernels().add_attention(scratch.keys.data(), n, scratch.panel.data(), dim, positions, limits, queries.softcap, sinks,
                                     factors, scratch.logits.data(), scratch.weights.data())) {
            return false;
        }
        after(std::min(n_lanes, n_all - first));
    }
    return true;
}

void sum_attention(const Rows & keys, const int32_t * positions, const edgekv_queries & queries, size_t n_rows,
            const float * row_scales, Scratch & scratch, float * sums) {
    const size_t n = keys.n();
    std::fill_n(sums, n, 0.0f);
    if (n == 0 || n_rows == 0) {
        return;
    }
    const float factor = 1.0f / static_cast<float>(queries.n_head);
    if (!each_panel(keys, positions, queries, n_rows, row_scales, factor, scratch, [](size_t) {})) {
        std::fill_n(sums, n, NAN); // a softmax makes a silent 0 of -inf
        return;
    }
    kernels().sum_lanes(scratch.weights.data(), n, sums); // a lane for each query of a panel, summed over the panels
}

void aggregate_attention(const Rows & keys, const int32_t * positions, const edgekv_queries & queries, size_t n_rows, const ByRow & how,
                   Scratch & scratch, float * scores) {
    const size_t n = keys.n();
    std::fill_n(scores, n, 0.0f);
    if (n == 0 || n_rows == 0) {
        return;
    }
    float *     weights = scratch.weights.data();
    float *     row     = scratch.prior.data();
    const float factor   = 1.0f / static_cast<float>(queries.n_head * n_rows);
    const bool  as_is   = how.largest && how.kernel == 1; // then no row is looked at as a whole
    const auto  gather  = [&](size_t n_queries) {
        for (size_t j = 0; as_is && j < n; ++j) {
            const float * lanes = weights + j * n_lanes;
            scores[j]           = std::max(scores[j], *std::max_element(lanes, lanes + n_queries));
        }
        for (size_t i = 0; !as_is && i < n_queries; ++i) {
            for (size_t j = 0; j < n; ++j) {
                row[j] = weights[j * n_lanes + i];
            }
            if (how.kernel > 1) {
                pool(how.pool, how.kernel, how.order, how.n_pooled, scratch, row);
            }
            for (size_t j = 0; j < n; ++j) {
                scores[j] = how.largest ? std::max(scores[j], row[j]) : scores[j] + factor * row[j];
            }
        }
        std::fill_n(weights, n * n_lanes, 0.0f);
    };
    if (!each_panel(keys, positions, queries, n_rows, nullptr, 1.0f, scratch, gather)) {
        std::fill_n(scores, n, NAN);
    }
}

} // namespace edgekv
