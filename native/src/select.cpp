#include "select.h"

#include "status.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace edgekv {

void check(const edgekv_protection & protection) {
    require(protection.pinned != nullptr || protection.n_pinned == 0, "protection.pinned is NULL");
    for (size_t i = 0; i < protection.n_pinned; ++i) {
        require(protection.pinned[2 * i] <= protection.pinned[2 * i + 1], "a pinned range ends before it begins");
    }
}

static bool is_pinned(const edgekv_protection & protection, int32_t position) {
    for (size_t i = 0; i < protection.n_pinned; ++i) {
        if (position >= protection.pinned[2 * i] && position < protection.pinned[2 * i + 1]) {
            return true;
        }
    }
    return false;
}

void select(const float * scores, const int32_t * positions, const uint32_t * order, size_t n, size_t budget,
            const edgekv_protection & protection, float * line, uint8_t * keep) {
    for (size_t i = 0; i < n; ++i) {
        if (!std::isfinite(scores[i])) {
            fail(EDGEKV_STATUS_NOT_FINITE, "the score of position %d is not finite; the model's keys hold NaN or infinity",
                 positions[i]);
        }
    }
    if (n <= budget) {
        std::fill_n(keep, n, uint8_t(1));
        return;
    }

    size_t n_open       = 0; // cells that compete
    size_t n_protected  = 0;
    const size_t recent = n - std::min<size_t>(n, protection.n_recent);
    for (size_t i = 0; i < n; ++i) {
        const uint32_t cell     = order[i];
        const int32_t  position = positions[cell];

        keep[cell] = i >= recent || (position >= 0 && uint32_t(position) < protection.n_sink) || is_pinned(protection, position);
        if (keep[cell]) {
            ++n_protected;
        } else {
            line[n_open++] = scores[cell];
        }
    }
    if (n_protected > budget) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "%zu protected cells exceed the budget of %zu; raise the budget or protect fewer",
             n_protected, budget);
    }

    size_t n_free = budget - n_protected;
    if (n_free == 0) {
        return;
    }
    // the worst score that stays, and how many cells with exactly that score there is room for
    std::nth_element(line, line + n_free - 1, line + n_open, std::greater<float>());
    const float worst  = line[n_free - 1];
    size_t      n_ties = n_free - std::count_if(line, line + n_open, [worst](float s) { return s > worst; });
    for (size_t i = n; i-- > 0;) {
        const uint32_t cell = order[i];
        if (keep[cell]) {
            continue;
        }
        if (scores[cell] > worst) {
            keep[cell] = 1;
        } else if (scores[cell] == worst && n_ties > 0) {
            keep[cell] = 1;
            --n_ties;
        }
    }
}

} // namespace edgekv
