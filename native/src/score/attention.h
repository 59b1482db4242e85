// Attention weights, recomputed for a few rows.
#pragma once

#include "cache/rows.h"
#include "edgekv.h"
#include "score/scratch.h"

namespace edgekv {

// Throws Error where the queries do not fit the keys.
void check(const edgekv_queries & queries, const Rows & keys);

// Write to sums (n,) the attention that each cell gets: the mean over query heads, summed over the newest n_rows rows.
// A row attends to the cells that are not after it. row_scales (n_rows,) replace queries.scale unless NULL.
// NaN anywhere gives NaN everywhere.
void attend(const Rows & keys, const int32_t * positions, const edgekv_queries & queries, size_t n_rows,
            const float * row_scales, Scratch & scratch, float * sums);

} // namespace edgekv
