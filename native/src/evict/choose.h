// From the cells of a head to the cells that stay: score, wrap, select.
#pragma once

#include "evict/select.h"
#include "score/score.h"

namespace edgekv {

// Throws Error unless the cells hold what the policy reads.
void check(const edgekv_policy & policy, const Cells & cells, uint32_t budget);

// Write the score of every cell (n,); of `critical` the second stage's.
void score_cells(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * scores);

// Mark the n_keep cells that stay, keep (n,), given their base scores (n,), which may be overwritten. Among them are those beside the budget.
void choose(const edgekv_policy & policy, const Cells & cells, float * scores, const edgekv_protection & protection,
            uint32_t n_keep, const Staying & staying, Scratch & scratch, uint8_t * keep);

} // namespace edgekv
