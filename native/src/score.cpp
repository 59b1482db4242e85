#include "score.h"

#include "status.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

void Scratch::reserve(size_t n_cells, size_t dim) {
    norms.resize(n_cells);
    scores.resize(n_cells);
    line.resize(n_columns * n_cells);
    sums.resize(n_cells + 1);
    row.resize(dim);
    anchor.resize(dim);
}

size_t Scratch::held() const {
    return sizeof(float) * (norms.capacity() + scores.capacity() + line.capacity() + row.capacity() + anchor.capacity()) +
           sizeof(double) * sums.capacity();
}

size_t Scratch::bytes(size_t n_cells, size_t dim) {
    return sizeof(float) * ((2 + n_columns) * n_cells + 2 * dim) + sizeof(double) * (n_cells + 1);
}

void check(const edgekv_policy & policy) {
    require(policy.base >= EDGEKV_BASE_SINK && policy.base <= EDGEKV_BASE_KEYDIFF, "policy.base is unknown");
    require(policy.anchor >= EDGEKV_ANCHOR_UNIT_MEAN && policy.anchor <= EDGEKV_ANCHOR_PAIRWISE, "policy.anchor is unknown");
    require(policy.metric >= EDGEKV_METRIC_COSINE && policy.metric <= EDGEKV_METRIC_EUCLIDEAN, "policy.metric is unknown");
    require(policy.pool >= EDGEKV_POOL_AVG && policy.pool <= EDGEKV_POOL_MAX, "policy.pool is unknown");
    require(policy.kernel % 2 == 1, "policy.kernel must be odd");
    require(policy.anchor != EDGEKV_ANCHOR_PAIRWISE || policy.metric == EDGEKV_METRIC_COSINE,
            "the pairwise anchor goes with the cosine metric only");
}

// SplitMix64's finaliser: a bijection that spreads every bit.
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static void score_random(const edgekv_policy & policy, const Cells & cells, float * scores) {
    const uint64_t stream = mix(policy.seed ^ (uint64_t(cells.layer) << 32 | cells.head));
    for (size_t i = 0; i < cells.keys.n(); ++i) {
        scores[i] = static_cast<float>(mix(stream ^ uint64_t(cells.positions[i])) >> 40) * 0x1p-24f;
    }
}

// Pool scores over neighbours in position order; at the ends the kernel holds fewer cells.
static void pool(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores) {
    const size_t n    = cells.keys.n();
    const size_t half = policy.kernel / 2;

    float * line = scratch.line.data();
    for (size_t i = 0; i < n; ++i) {
        const float score = scores[cells.order[i]];

        line[i] = std::isfinite(score) ? score : INFINITY; // so that no maximum hides it from the selection
    }
    if (policy.pool == EDGEKV_POOL_AVG) {
        double * sums = scratch.sums.data();
        sums[0]       = 0.0;
        for (size_t i = 0; i < n; ++i) {
            sums[i + 1] = sums[i] + line[i];
        }
        for (size_t i = 0; i < n; ++i) {
            const size_t lo = i - std::min(i, half);
            const size_t hi = std::min(n, i + half + 1);

            scores[cells.order[i]] = static_cast<float>((sums[hi] - sums[lo]) / static_cast<double>(hi - lo));
        }
    } else {
        for (size_t i = 0; i < n; ++i) {
            scores[cells.order[i]] = *std::max_element(line + i - std::min(i, half), line + std::min(n, i + half + 1));
        }
    }
}

void score(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores) {
    switch (policy.base) {
        case EDGEKV_BASE_SINK:    std::copy_n(cells.positions, cells.keys.n(), scores); break;
        case EDGEKV_BASE_RANDOM:  score_random(policy, cells, scores); break;
        case EDGEKV_BASE_KEYDIFF: score_keydiff(policy, cells, scratch, scores); break;
    }
    if (policy.kernel > 1) {
        pool(policy, cells, scratch, scores);
    }
}

} // namespace edgekv
