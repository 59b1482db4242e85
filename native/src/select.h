// Selection: which cells of a head stay.
#pragma once

#include "edgekv.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

// Mark the cells that stay: keep[cell] = 1 for min(n, budget) cells. Protected cells first, then the best scores,
// ties to the later position. scores and positions are indexed by cell, `order` lists cells ascending by position;
// `line` is scratch of n floats. Throws Error when protected cells exceed the budget or a score is not finite.
void select(const float * scores, const int32_t * positions, const uint32_t * order, size_t n, size_t budget,
            const edgekv_protection & protection, float * line, uint8_t * keep);

void check(const edgekv_protection & protection);

} // namespace edgekv
