#include "evict/allot.h"

#include "hooks/status.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

namespace edgekv {

namespace {

void require_reach(uint32_t budget, uint32_t largest) {
    if (largest < budget) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "largest=%u is less than the budget of %u; raise it or lower the budget", largest,
             budget);
    }
}

// Whole cells for fractional targets: the floor of each, at most its cap. What is left of `total`, which the caps can hold,
// goes one by one to who lacks most and has room; ties to the lower index.
void apportion(const std::vector<double> & targets, const std::vector<uint32_t> & caps, size_t total, uint32_t * budgets) {
    using Lack = std::pair<double, size_t>; // target less budget, index

    const auto lacks_less = [](const Lack & a, const Lack & b) {
        return a.first < b.first || (a.first == b.first && a.second > b.second);
    };

    std::vector<Lack> lacks;
    lacks.reserve(targets.size());
    size_t n_given = 0;
    for (size_t i = 0; i < targets.size(); ++i) {
        budgets[i] = static_cast<uint32_t>(std::min<double>(std::floor(targets[i]), caps[i]));
        n_given += budgets[i];
        if (budgets[i] < caps[i]) {
            lacks.emplace_back(targets[i] - budgets[i], i);
        }
    }
    std::make_heap(lacks.begin(), lacks.end(), lacks_less);
    for (; n_given < total; ++n_given) {
        std::pop_heap(lacks.begin(), lacks.end(), lacks_less);
        const size_t i = lacks.back().second;
        lacks.pop_back();
        if (++budgets[i] < caps[i]) {
            lacks.emplace_back(targets[i] - budgets[i], i);
            std::push_heap(lacks.begin(), lacks.end(), lacks_less);
        }
    }
}

// Add to found (n_heads,) how many of the best n_best cells that are not protected each head has. Ties go to the later
// position, then to the lower head. `line` holds the scores of those n_open cells.
void count_best(const Ranked * heads, size_t n_heads, const edgekv_protection & protection, size_t n_best, float * line,
                size_t n_open, std::vector<uint32_t> & found) {
    struct Tie {
        int32_t position;
        size_t  head;
        size_t  i; // its place in the head's order
    };

    n_best = std::min(n_best, n_open);
    if (n_best == 0) {
        return;
    }
    std::nth_element(line, line + n_best - 1, line + n_open, std::greater<float>());
    const float worst   = line[n_best - 1];
    const auto  is_open = [&](size_t g, size_t i) { return !is_protected(heads[g], i, protection); };
    const auto  older   = [](const Tie & a, const Tie & b) {
        return a.position < b.position || (a.position == b.position && a.head > b.head);
    };

    // the newest tie of every head that was not counted yet: so many tied cells take no more memory than few
    std::vector<Tie> ties;
    ties.reserve(n_heads);
    const auto put_newest = [&](size_t g, size_t n) { // of the first n of the head's order
        const auto score = [&](size_t i) { return heads[g].scores[heads[g].order[i]]; };
        while (n > 0 && !(score(n - 1) == worst && is_open(g, n - 1))) {
            --n;
        }
        if (n > 0) {
            ties.push_back({ heads[g].positions[heads[g].order[n - 1]], g, n - 1 });
            std::push_heap(ties.begin(), ties.end(), older);
        }
    };
    for (size_t g = 0; g < n_heads; ++g) {
        for (size_t i = 0; i < heads[g].n; ++i) {
            if (heads[g].scores[heads[g].order[i]] > worst && is_open(g, i)) {
                ++found[g];
                --n_best;
            }
        }
        put_newest(g, heads[g].n);
    }
    for (; n_best > 0; --n_best) {
        std::pop_heap(ties.begin(), ties.end(), older);
        const Tie newest = ties.back();
        ties.pop_back();
        ++found[newest.head];
        put_newest(newest.head, newest.i);
    }
}

} // namespace

void layer_budgets(double beta, size_t n_layer, uint32_t budget, uint32_t n_protected, uint32_t largest, uint32_t * budgets) {
    require_room(n_protected, budget);
    require_reach(budget, largest);
    const double free = budget - n_protected;
    const double tilt = beta == 0.0 ? 0.0 : free - free / beta; // of the first layer above the mean, and of the last below

    std::vector<double> targets(n_layer, budget);
    for (size_t i = 0; n_layer > 1 && i < n_layer; ++i) {
        const volatile double tilted = tilt * (double(n_layer - 1) - 2.0 * double(i)); // see allot
        targets[i] += tilted / double(n_layer - 1);
    }
    apportion(targets, std::vector<uint32_t>(n_layer, largest), n_layer * budget, budgets);
}

void allot(const Ranked * heads, size_t n_heads, const edgekv_protection & protection, uint32_t budget, uint32_t largest,
           double safeguard, float * line, uint32_t * budgets) {
    require_reach(budget, largest);
    size_t n_all   = n_heads * size_t(budget);
    size_t n_cells = 0;
    bool   fits    = true;
    for (size_t g = 0; g < n_heads; ++g) {
        require_finite(heads[g]);
        n_all += heads[g].staying.n_held;
        n_cells += heads[g].n;
        fits = fits && heads[g].n <= largest;
    }
    if (fits && n_cells <= n_all) {
        std::transform(heads, heads + n_heads, budgets, [](const Ranked & head) { return static_cast<uint32_t>(head.n); });
        return;
    }
    std::vector<uint32_t> found(n_heads); // f of Algorithm 1, and the protected cells
    size_t                n_open = 0;
    for (size_t g = 0; g < n_heads; ++g) {
        for (size_t i = 0; i < heads[g].n; ++i) {
            if (is_protected(heads[g], i, protection)) {
                ++found[g];
            } else {
                line[n_open++] = heads[g].scores[heads[g].order[i]];
            }
        }
        require_room(found[g], budget + heads[g].staying.n_held);
    }
    count_best(heads, n_heads, protection, n_all - (n_cells - n_open), line, n_open, found);

    std::vector<double>   targets(n_heads);
    std::vector<uint32_t> caps(n_heads);
    size_t                n_room = 0;
    for (size_t g = 0; g < n_heads; ++g) {
        // rounded before it is added, as the reference does: a compiler that fuses the two may cross a whole number
        const volatile double moved = safeguard * (double(budget + heads[g].staying.n_held) - double(found[g]));

        targets[g] = found[g] + moved;
        caps[g]    = static_cast<uint32_t>(std::min<size_t>(heads[g].n, largest));
        n_room += caps[g];
    }
    apportion(targets, caps, std::min(n_all, n_room), budgets);
}

} // namespace edgekv
