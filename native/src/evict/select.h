// Selection: which cells of a head stay.
#pragma once

#include "cache/cells.h"
#include "edgekv.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace edgekv {

// Positions of a head, (n,) ascending.
struct Positions {
    const int32_t * first = nullptr;
    size_t          n     = 0;

    bool has(int32_t position) const { return n > 0 && std::binary_search(first, first + n, position); }
};

// What the host wants to stay in a head.
struct Staying {
    Positions beside; // its budget
    Positions within;
    uint32_t  n_held = 0;     // of the head's tokens that are beside
    bool      rest   = false; // whether the head's rest is
};

// Cells that compete: all is indexed by cell, but `order` lists n cells ascending by position.
struct Ranked {
    const float *    scores;
    const int32_t *  positions;
    const uint32_t * order;
    size_t           n;
    Staying          staying = {};
};

// The cells of a head that compete: tokens, and no rest, which is the first by position.
inline Ranked tokens_of(const float * scores, const int32_t * positions, const uint32_t * order, size_t n, const Staying & staying = {}) {
    const size_t n_rests = n > 0 && positions[order[0]] == rest_position ? 1 : 0;
    return { scores, positions, order + n_rests, n - n_rests, staying };
}

// Mark the cells that stay: keep[cell] = 1 for min(n, budget) of them, 0 for the others. Protected cells first, then the best
// scores, ties to the later position; `line` is scratch of n floats. Throws Error when protected cells exceed the budget or a score is
// not finite.
void select(const Ranked & cells, size_t budget, const edgekv_protection & protection, float * line, uint8_t * keep);

// The same in two stages: of what the protected cells leave, the first stage's cells by cells.scores, the rest by `second` (n,).
// policy: `alpha` or `mass` says how many the first stage takes
void select_in_stages(const Ranked & cells, const float * second, const edgekv_policy & policy, size_t budget,
                      const edgekv_protection & protection, float * line, uint8_t * keep);

void check(const edgekv_protection & protection);

// Whether the i-th cell by position stays whatever its score.
bool is_protected(const Ranked & cells, size_t i, const edgekv_protection & protection);

// Throw Error for a score that is not finite, and where the protected cells alone exceed the budget.
void require_finite(const Ranked & cells);
void require_room(size_t n_protected, size_t budget);

} // namespace edgekv
