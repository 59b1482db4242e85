// Scoring: one narrow door between the cache and the policies.
#pragma once

#include "edgekv.h"
#include "rows/rows.h"
#include "score/scratch.h"
#include "score/traits.h"

#include <algorithm>
#include <cstdint>

namespace edgekv {

// The cells of one head. All arrays are indexed by cell; `order` lists the cells ascending by position. What the
// policy does not read may be NULL.
struct Cells {
    const Rows &           keys;
    const Rows *           values;
    const int32_t *        positions;   // (n,)
    const uint32_t *       order;       // (n,)
    const float *          accumulated; // (n,), NULL = 0
    const float *          wo_norm;     // (n,)
    const float *          given;       // (n,) from elsewhere, a scorer of one's own or a device; NULL = none: base scores, or
                                        // what cells get of attention
    const float *          of_values;   // (n,) likewise from a device: what a prior makes of values, or what CAOTE does
    const edgekv_queries * queries;
    uint32_t               layer;
    uint32_t               head;
};

// Call f(first, n, values) for all rows, a few at a time: values (n, dim) of rows [first, first + n) are in scratch.rows.
template <typename F> void each_few(const Rows & rows, Scratch & scratch, F f) {
    for (size_t first = 0; first < rows.n(); first += Scratch::n_rows) {
        const size_t n = std::min(Scratch::n_rows, rows.n() - first);
        rows.read(first, n, scratch.rows.data());
        f(first, n, scratch.rows.data());
    }
}

// Write the base score of every cell, (n,) float32, higher is kept; and to accumulated (n,), unless NULL, what the cells
// carry on.
void score_base(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * scores,
                float * accumulated);

// Turn base scores into what the wrappers start from: a softmax of them where the policy asks for it.
void normalise(const edgekv_policy & policy, size_t n, float * scores);

// Positions; a uniform hash of (seed, layer, head, position), in [0, 1); and -norm2(K).
void score_sink(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores);
void score_random(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores);
void score_l2norm(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores);

// KeyDiff (arXiv:2504.15364, eq. 7 and 8; anchors of Table 14, metrics of Table 15).
void score_keydiff(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores);

// Attention gathered by the cells; AhaKV also sharpens it, and weighs it with the values.
void score_attention(const edgekv_policy & policy, const Cells & cells, uint32_t budget, Scratch & scratch, float * scores,
                     float * accumulated);

// lambda_i = sqrt(2 ln(i / k) / d) for each of the newest n rows (AhaKV eq. 12), i tokens seen and k the budget.
void step_gains(const edgekv_policy & policy, const edgekv_queries & queries, size_t n_rows, uint32_t budget, float * gains);

// CAOTE (arXiv:2504.14051, eq. 20 to 23): from weights (n,) the output error c (n,) of each of the n cells.
// cells.of_values: how far each value is from the mean of all by write_mean_weights, or that of the heavy one from the mean of
// the others.
void score_caote(const edgekv_policy & policy, const Cells & cells, const float * weights, Scratch & scratch, float * errors);

// The cell that holds more than half of all weight, by its place in `order`, where CAOTE's mean would be little but that cell;
// n if there is none.
size_t heavy_cell(const edgekv_policy & policy, const float * weights, const uint32_t * order, size_t n);

// The weight of each of them in the mean that CAOTE compares values with, by cell; 0 of one that is left out, if any.
void write_mean_weights(const edgekv_policy & policy, const float * weights, const uint32_t * order, size_t n, size_t left_out,
                        float * mean_weights);

// Mean over kernel neighbours in position order, or their maximum, in place; `order` lists n cells ascending by position.
void pool(int32_t how, uint32_t kernel, const uint32_t * order, size_t n, Scratch & scratch, float * scores);

} // namespace edgekv
