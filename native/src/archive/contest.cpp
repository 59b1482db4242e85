#include "archive/contest.h"

#include <algorithm>
#include <functional>

namespace edgekv {

void keep_best(edgekv_recalled & found, std::vector<float> & scores, const std::vector<size_t> & heads, size_t n) {
    std::vector<float> all;
    for (const size_t head : heads) {
        const auto first = scores.begin() + head * found.most;
        all.insert(all.end(), first, first + found.counts[head]);
    }
    if (all.size() <= n) {
        return;
    }
    std::nth_element(all.begin(), all.begin() + n, all.end(), std::greater<>());
    const float bound = all[n]; // those above it stay, and of those that are equal as many as there is room for
    auto n_equal = static_cast<int64_t>(n) - std::count_if(all.begin(), all.begin() + n, [&](float score) { return score > bound; });
    for (const size_t head : heads) {
        int32_t * const     position = found.positions.data() + head * found.most;
        float * const       score    = scores.data() + head * found.most;
        uint32_t            n_left   = 0;
        for (uint32_t i = 0; i < found.counts[head]; ++i) {
            if (score[i] > bound || (score[i] == bound && n_equal-- > 0)) {
                score[n_left]      = score[i];
                position[n_left++] = position[i];
            }
        }
        found.counts[head] = n_left;
    }
}

} // namespace edgekv
