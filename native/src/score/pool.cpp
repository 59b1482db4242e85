#include "score/score.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

void pool(int32_t how, uint32_t kernel, const uint32_t * order, size_t n, Scratch & scratch, float * scores) {
    const size_t half = kernel / 2;

    float * line = scratch.line.data();
    for (size_t i = 0; i < n; ++i) {
        const float score = scores[order[i]];

        line[i] = std::isfinite(score) ? score : INFINITY; // so that no maximum hides it from the selection
    }
    if (how == EDGEKV_POOL_AVG) {
        double * sums = scratch.sums.data();
        sums[0]       = 0.0;
        for (size_t i = 0; i < n; ++i) {
            sums[i + 1] = sums[i] + line[i];
        }
        for (size_t i = 0; i < n; ++i) {
            const size_t lo = i - std::min(i, half);
            const size_t hi = std::min(n, i + half + 1);

            scores[order[i]] = static_cast<float>((sums[hi] - sums[lo]) / static_cast<double>(hi - lo));
        }
    } else {
        for (size_t i = 0; i < n; ++i) {
            scores[order[i]] = *std::max_element(line + i - std::min(i, half), line + std::min(n, i + half + 1));
        }
    }
}

} // namespace edgekv
