// Attention weights, recomputed for a few rows.
#pragma once

#include "edgekv.h"
#include "rows/rows.h"
#include "score/scratch.h"

namespace edgekv {

// Throws Error if the queries do not fit the keys.
void check(const edgekv_queries & queries, const Rows & keys);

// Write to sums (n,) the attention that each cell gets: the mean over query heads, summed over the newest n_rows rows.
// A row attends to the cells that are not after it. row_scales (n_rows,) replace queries.scale unless NULL.
// NaN anywhere gives NaN everywhere.
void sum_attention(const Rows & keys, const int32_t * positions, const edgekv_queries & queries, size_t n_rows,
            const float * row_scales, Scratch & scratch, float * sums);

// How the attention of single rows becomes the score of a cell.
struct ByRow {
    bool             largest;  // the maximum over rows and query heads; else the mean
    int32_t          pool;     // enum edgekv_pool: of every row, before
    uint32_t         kernel;   // cells under its kernel; 1 = rows are not pooled
    const uint32_t * order;    // cells that are pooled, ascending by position
    size_t           n_pooled;
};

// Write to scores (n,) what the newest n_rows rows of all query heads give the cells. NaN as above.
void aggregate_attention(const Rows & keys, const int32_t * positions, const edgekv_queries & queries, size_t n_rows, const ByRow & how,
                   Scratch & scratch, float * scores);

} // namespace edgekv
