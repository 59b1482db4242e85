#include "evict/select.h"

#include "hooks/status.h"

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

namespace {

bool is_pinned(const edgekv_protection & protection, int32_t position) {
    for (size_t i = 0; i < protection.n_pinned; ++i) {
        if (position >= protection.pinned[2 * i] && position < protection.pinned[2 * i + 1]) {
            return true;
        }
    }
    return false;
}

} // namespace

bool is_protected(const Ranked & cells, size_t i, const edgekv_protection & protection) {
    const int32_t position = cells.positions[cells.order[i]];
    const bool    is_sink  = position >= 0 && uint32_t(position) < protection.n_sink;
    const bool    is_new   = cells.n - i <= protection.n_recent;
    return is_sink || is_new || is_pinned(protection, position) || cells.staying.beside.has(position) || cells.staying.within.has(position);
}

void require_room(size_t n_protected, size_t budget) {
    if (n_protected > budget) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "%zu protected cells exceed the budget of %zu; raise the budget or protect fewer",
             n_protected, budget);
    }
}

void require_finite(const Ranked & cells) {
    for (size_t i = 0; i < cells.n; ++i) {
        const uint32_t cell = cells.order[i];
        if (!std::isfinite(cells.scores[cell])) {
            fail(EDGEKV_STATUS_NOT_FINITE, "the score of position %d is not finite; the model's keys or values hold NaN or infinity",
                 cells.positions[cell]);
        }
    }
}

namespace {

// Mark the protected cells, or all where all fit. Returns the number of marked ones.
size_t mark_protected(const Ranked & cells, size_t budget, const edgekv_protection & protection, uint8_t * keep) {
    size_t n_marked = 0;
    for (size_t i = 0; i < cells.n; ++i) {
        const uint32_t cell = cells.order[i];

        keep[cell] = cells.n <= budget || is_protected(cells, i, protection);
        n_marked += keep[cell];
    }
    require_room(n_marked, budget);
    return n_marked;
}

// Mark the best n_free of the cells not marked yet.
void fill(const Ranked & cells, size_t n_free, float * line, uint8_t * keep) {
    size_t n_open = 0;
    for (size_t i = 0; i < cells.n; ++i) {
        if (!keep[cells.order[i]]) {
            line[n_open++] = cells.scores[cells.order[i]];
        }
    }
    n_free = std::min(n_free, n_open);
    if (n_free == 0) {
        return;
    }
    // the worst score that stays, and how many cells with exactly that score there is room for
    std::nth_element(line, line + n_free - 1, line + n_open, std::greater<float>());
    const float worst  = line[n_free - 1];
    size_t      n_ties = n_free - std::count_if(line, line + n_open, [worst](float s) { return s > worst; });
    for (size_t i = cells.n; i-- > 0;) {
        const uint32_t cell = cells.order[i];
        if (keep[cell]) {
            continue;
        }
        if (cells.scores[cell] > worst) {
            keep[cell] = 1;
        } else if (cells.scores[cell] == worst && n_ties > 0) {
            keep[cell] = 1;
            --n_ties;
        }
    }
}

} // namespace

void select(const Ranked & cells, size_t budget, const edgekv_protection & protection, float * line, uint8_t * keep) {
    require_finite(cells);
    const size_t n_marked = mark_protected(cells, budget, protection, keep);
    fill(cells, budget - n_marked, line, keep);
}

void select_in_stages(const Ranked & cells, const float * second, const edgekv_policy & policy, size_t budget,
                      const edgekv_protection & protection, float * line, uint8_t * keep) {
    Ranked again = cells;
    again.scores = second;
    require_finite(cells);
    require_finite(again);
    const size_t n_free  = budget - mark_protected(cells, budget, protection, keep);
    const auto   n_first = static_cast<size_t>(std::floor(policy.alpha * static_cast<double>(n_free)));
    fill(cells, n_first, line, keep);
    fill(again, n_free - n_first, line, keep);
}

} // namespace edgekv
