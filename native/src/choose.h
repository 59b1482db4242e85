// From the cells of a head to the cells that stay: score, wrap, select.
#pragma once

#include "score.h"
#include "select.h"

namespace edgekv {

// Throws Error unless the cells hold what the policy reads.
void check(const edgekv_policy & policy, const Cells & cells, uint32_t budget);

// Write the score of every cell (n,); of `critical` the second stage's.
void score(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * scores);

// Write the weights (n,) that cells are chosen by: base scores, or a softmax of them where the policy asks for it; and to
// accumulated (n,), unless NULL, what the cells carry on.
void weigh(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * weights,
           float * accumulated);

// Mark the cells that stay, keep (n,), given their weights.
void choose(const edgekv_policy & policy, const Cells & cells, const float * weights, const edgekv_protection & protection,
            uint32_t budget, Scratch & scratch, uint8_t * keep);

} // namespace edgekv
