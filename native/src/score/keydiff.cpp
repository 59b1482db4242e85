#include "score/kernels.h"
#include "score/score.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

namespace {

constexpr float epsilon = 1e-6f; // floor of the cosine's denominator (paper, appendix B.1)

// The mean of the keys, each divided by its norm if `unit`. Leaves the keys' norms in scratch.norms.
void mean_anchor(const Rows & keys, bool unit, Scratch & scratch) {
    float *        anchor = scratch.anchor.data();
    float *        row    = scratch.row.data();
    const uint32_t dim    = keys.dim();

    std::fill_n(anchor, dim, 0.0f);
    for (size_t i = 0; i < keys.n(); ++i) {
        keys.read(i, row);
        const float norm   = std::sqrt(kernels().dot(row, row, dim));
        const float weight = !unit ? 1.0f : norm > 0.0f ? 1.0f / norm : 0.0f;

        scratch.norms[i] = norm;
        kernels().add_scaled(anchor, weight, row, dim);
    }
    for (uint32_t k = 0; k < dim; ++k) {
        anchor[k] /= static_cast<float>(keys.n());
    }
}

// The median of each element. Of an even number the two middle values are averaged. A rotated row mixes the
// elements, so rows are turned back first, and the anchor is turned again to meet the rows as stored.
void median_anchor(const Rows & keys, Scratch & scratch) {
    const size_t   n   = keys.n();
    const uint32_t dim = keys.dim();
    float *        row = scratch.row.data();

    for (uint32_t first = 0; first < dim; first += Scratch::n_columns) {
        const uint32_t last = std::min(dim, first + Scratch::n_columns);
        for (size_t i = 0; i < n; ++i) {
            keys.read(i, row);
            if (keys.rotation() > 0) {
                rotate_hadamard(row, dim, keys.rotation());
            }
            for (uint32_t k = first; k < last; ++k) {
                scratch.line[(k - first) * n + i] = std::isnan(row[k]) ? INFINITY : row[k]; // NaN has no order
            }
            scratch.norms[i] = std::sqrt(kernels().dot(row, row, dim));
        }
        for (uint32_t k = first; k < last; ++k) {
            float * column = scratch.line.data() + (k - first) * n;
            std::nth_element(column, column + n / 2, column + n);
            const float upper = column[n / 2];

            scratch.anchor[k] = n % 2 == 1 ? upper : 0.5f * (upper + *std::max_element(column, column + n / 2));
        }
    }
    if (keys.rotation() > 0) {
        rotate_hadamard(scratch.anchor.data(), dim, keys.rotation());
    }
}

} // namespace

void score_keydiff(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores) {
    const Rows &   keys = cells.keys;
    const uint32_t dim  = keys.dim();
    if (keys.n() == 0) {
        return;
    }
    if (policy.anchor == EDGEKV_ANCHOR_MEDIAN) {
        median_anchor(keys, scratch);
    } else {
        mean_anchor(keys, policy.anchor != EDGEKV_ANCHOR_MEAN, scratch);
    }

    const float * anchor = scratch.anchor.data();
    float *       row    = scratch.row.data();

    // eq. 7, the mean cosine with every key, is the dot product of the unit key with the mean of unit keys
    const float anchor_norm = policy.anchor == EDGEKV_ANCHOR_PAIRWISE ? 1.0f : std::sqrt(kernels().dot(anchor, anchor, dim));

    for (size_t i = 0; i < keys.n(); ++i) {
        keys.read(i, row);
        switch (policy.metric) {
            case EDGEKV_METRIC_COSINE:
                scores[i] = -kernels().dot(anchor, row, dim) / std::max(scratch.norms[i] * anchor_norm, epsilon);
                break;
            case EDGEKV_METRIC_DOT:       scores[i] = -kernels().dot(anchor, row, dim); break;
            case EDGEKV_METRIC_EUCLIDEAN: scores[i] = std::sqrt(kernels().squared_distance(anchor, row, dim)); break;
        }
    }
}

} // namespace edgekv
