#include "score/score.h"

#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

// SplitMix64's finaliser: a bijection that spreads every bit.
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

void score_sink(const edgekv_policy &, const Cells & cells, Scratch &, float * scores) {
    std::copy_n(cells.positions, cells.keys.n(), scores);
}

void score_random(const edgekv_policy & policy, const Cells & cells, Scratch &, float * scores) {
    const uint64_t stream = mix(policy.seed ^ (uint64_t(cells.layer) << 32 | cells.head));
    for (size_t i = 0; i < cells.keys.n(); ++i) {
        scores[i] = static_cast<float>(mix(stream ^ uint64_t(cells.positions[i])) >> 40) * 0x1p-24f;
    }
}

void score_l2norm(const edgekv_policy &, const Cells & cells, Scratch & scratch, float * scores) {
    each_few(cells.keys, scratch, [&](size_t first, size_t n, const float * keys) {
        kernels().squares(keys, n, cells.keys.dim(), scores + first);
    });
    std::transform(scores, scores + cells.keys.n(), scores, [](float square) { return -std::sqrt(square); });
}

void score_base(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * scores,
                float * accumulated) {
    const Traits traits = traits_of(policy);
    const size_t n      = cells.keys.n();
    if (traits.queries && traits.formula == nullptr) {
        score_attention(policy, cells, budget, scratch, scores, accumulated);
        return;
    }
    if (cells.given != nullptr) {
        std::copy_n(cells.given, n, scores);
    } else if (traits.formula != nullptr) {
        traits.formula(policy, cells, scratch, scores);
    }
    if (policy.kernel > 1) {
        pool(policy.pool, policy.kernel, cells.order, n, scratch, scores);
    }
}

void normalise(const edgekv_policy & policy, size_t n, float * scores) {
    if (!policy.softmax || n == 0) {
        return;
    }
    if (!std::all_of(scores, scores + n, [](float score) { return std::isfinite(score); })) {
        std::fill_n(scores, n, NAN); // the softmax of -inf would be a silent 0
        return;
    }
    const float most = *std::max_element(scores, scores + n);
    double      sum  = 0.0;
    for (size_t i = 0; i < n; ++i) {
        scores[i] = std::exp(scores[i] - most);
        sum += scores[i];
    }
    for (size_t i = 0; i < n; ++i) {
        scores[i] = static_cast<float>(scores[i] / sum);
    }
}

} // namespace edgekv
