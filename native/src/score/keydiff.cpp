#include "kernels/kernels.h"
#include "score/score.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

namespace {

constexpr float epsilon = 1e-6f; // floor of the cosine's denominator (paper, appendix B.1)

// The keys as floats, since they are read more than once: in scratch.keys, if a policy that attends has made room there for all of them.
Rows read_once(const Rows & keys, Scratch & scratch) {
    if (scratch.keys.size() < keys.n() * keys.dim()) {
        return keys;
    }
    keys.read(0, keys.n(), scratch.keys.data());
    return Rows({ sizeof(edgekv_rows), GGML_TYPE_F32, scratch.keys.data(), keys.n(), keys.dim() * sizeof(float), keys.dim(), keys.rotation() });
}

// The mean of the keys, each divided by its norm if `unit`. Leaves the keys' norms in scratch.norms.
void mean_anchor(const Rows & keys, bool unit, Scratch & scratch) {
    float *        anchor = scratch.anchor.data();
    const uint32_t dim    = keys.dim();

    std::fill_n(anchor, dim, 0.0f);
    each_few(keys, scratch, [&](size_t first, size_t n, const float * rows) {
        float * norms   = scratch.norms.data() + first;
        float * weights = scratch.factors.data();
        kernels().squares(rows, n, dim, norms);
        for (size_t i = 0; i < n; ++i) {
            norms[i]   = std::sqrt(norms[i]);
            weights[i] = !unit ? 1.0f : norms[i] > 0.0f ? 1.0f / norms[i] : 0.0f;
        }
        kernels().add_weighted(anchor, weights, rows, n, dim);
    });
    for (uint32_t k = 0; k < dim; ++k) {
        anchor[k] /= static_cast<float>(keys.n());
    }
}

// The median of each element. Of an even number the two middle values are averaged. A rotated row mixes the
// elements, so rows are turned back first, and the anchor is turned again to meet the rows as stored.
void median_anchor(const Rows & keys, Scratch & scratch) {
    const size_t   n   = keys.n();
    const uint32_t dim = keys.dim();
    float *        row = scratch.rows.data();

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
    if (cells.keys.n() == 0) {
        return;
    }
    const Rows     keys = read_once(cells.keys, scratch);
    const uint32_t dim  = keys.dim();
    if (policy.anchor == EDGEKV_ANCHOR_MEDIAN) {
        median_anchor(keys, scratch);
    } else {
        mean_anchor(keys, policy.anchor != EDGEKV_ANCHOR_MEAN, scratch);
    }

    const float * anchor = scratch.anchor.data();

    // eq. 7, the mean cosine with every key, is the dot product of the unit key with the mean of unit keys
    const float anchor_norm = policy.anchor == EDGEKV_ANCHOR_PAIRWISE ? 1.0f : std::sqrt(kernels().dot(anchor, anchor, dim));

    each_few(keys, scratch, [&](size_t first, size_t n, const float * rows) {
        float * products = scores + first;
        if (policy.metric == EDGEKV_METRIC_EUCLIDEAN) {
            for (size_t i = 0; i < n; ++i) {
                products[i] = std::sqrt(kernels().squared_distance(anchor, rows + i * dim, dim));
            }
            return;
        }
        kernels().dots(rows, n, anchor, dim, products);
        for (size_t i = 0; i < n; ++i) {
            const float norms = policy.metric == EDGEKV_METRIC_COSINE ? scratch.norms[first + i] * anchor_norm : 1.0f;
            products[i] /= -std::max(norms, epsilon);
        }
    });
}

} // namespace edgekv
