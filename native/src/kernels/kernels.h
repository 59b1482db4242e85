// The loops that scoring and attention spend their time in, compiled once for each set of instructions and chosen when the library is loaded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgekv {

constexpr size_t n_lanes = 16; // columns of a panel

constexpr size_t n_gram_rows = 8; // that go to a Gram matrix together, which is read and written once for them

// Attention of a few queries of one KV head, cells taken tile by tile: what `attend_tile` goes on from.
struct AttentionTile {
    size_t           n_queries;
    size_t           n_cells;
    size_t           dim_k;   // multiples of n_lanes
    size_t           dim_v;
    const float *    queries; // (n_queries, dim_k), times the scale of logits
    const float *    keys;    // (n_cells, dim_k); memory up to a multiple of n_lanes cells
    const float *    values;  // (n_cells, dim_v), rows value_stride floats apart
    size_t           value_stride;
    const int32_t *  n_seen;  // (n_queries,): each sees the first ones of the cells
    const int32_t *  hidden;  // (n_queries, cells of logits): not 0 if a query does not see one of them; NULL = it sees all
    float            softcap; // 0 = none
    float *          logits;  // scratch, n_queries times as many as the cells that keys has memory for
    float *          most;    // (n_queries,) largest logit so far; -inf where there was none
    float *          sums;    // (n_queries,) of exp(logit - most)
    float *          out;     // (n_queries, dim_v) sums of these times the values
};

// The same of as many queries as a panel has lanes, which lie side by side.
struct AttentionPanel {
    size_t          n_cells;
    size_t          dim_k;
    size_t          dim_v;
    const float *   queries; // (dim_k, n_lanes), times the scale of logits
    const float *   keys;    // (n_cells, dim_k)
    const float *   values;  // (n_cells, dim_v), rows value_stride floats apart
    size_t          value_stride;
    const int32_t * n_seen;  // (n_lanes,): each sees the first ones of the cells, or none
    const int32_t * hidden;  // (n_cells, n_lanes): not 0 if a lane does not see one of them; NULL = it sees all
    float           softcap; // 0 = none
    float *         logits;  // scratch, (n_cells, n_lanes)
    float *         most;    // (n_lanes,) largest logit so far; -inf where there was none
    float *         sums;    // (n_lanes,) of exp(logit - most)
    float *         out;     // (dim_v, n_lanes) sums of these times the values
};

// Keys that all queries of some panels see, as a scan reads them.
struct KeyTile {
    size_t        n_keys;
    size_t        dim;
    size_t        n_panels;
    const float * keys;    // (n_keys, dim)
    const float * queries; // (n_panels, dim, n_lanes), times the scale of logits
    float         softcap; // 0 = none
    float *       scratch; // (n_keys rounded up to n_lanes, 2, n_lanes)
};

struct Kernels {
    const char * name; // "avx512", "avx2" or "baseline"

    float (*dot)(const float * a, const float * b, size_t n);
    float (*squared_distance)(const float * a, const float * b, size_t n);
    void (*add_scaled)(float * sum, float weight, const float * row, size_t n); // sum += weight * row

    // Of rows (n_rows, depth), adjacent: their dot products with a vector (depth,), or with themselves; and
    // sum (depth,) += their sum, weighted.
    void (*dots)(const float * rows, size_t n_rows, const float * vector, size_t depth, float * products);
    void (*squares)(const float * rows, size_t n_rows, size_t depth, float * products);
    void (*add_weighted)(float * sum, const float * weights, const float * rows, size_t n_rows, size_t depth);

    // Turn each pair of a row's elements back by turns[i] * position full circles, to 2e-7 of its length.
    void (*turn_back)(float * row, const double * turns, size_t n_pairs, bool neighbours, int32_t position);

    // Rotate n elements by the orthonormal Hadamard matrix, in runs of `run` elements, a power of two.
    void (*rotate)(float * row, size_t n, size_t run);

    // Products of rows (n_rows, depth), `stride` floats apart, with the columns of panel (depth, n_lanes): add their absolute
    // values, summed over the rows, to sums (n_lanes,).
    void (*add_norm1)(const float * rows, size_t stride, size_t n_rows, const float * panel, size_t depth, float * sums);

    // Add to weights (n_rows, n_lanes) the attention that cells get, their keys being rows (n_rows, depth), from the queries that
    // are the columns of panel (depth, n_lanes): the softmax of the products over the cells, times lane_factors (n_lanes,). Lane i sees
    // the cells whose position is at most limits[i]; one that sees none adds nothing. A sink (n_lanes,) is one more
    // logit of its lane, whose weight goes nowhere; -inf = none. logits (n_rows, n_lanes) is scratch.
    // False, and no weights to speak of, where a product that is seen is not finite.
    bool (*add_attention)(const float * rows, size_t n_rows, const float * panel, size_t depth, const int32_t * positions,
                          const int32_t * limits, float softcap, const float * sinks, const float * lane_factors, float * logits,
                          float * weights);

    // Sums of rows (n, n_lanes), one for each row.
    void (*sum_lanes)(const float * rows, size_t n, float * sums);

    // Bring `most`, `sums` and `out` up to date with a tile of cells: alike to the bit for a query of a tile and a lane of a panel, whatever
    // stands beside it. If a logit is not finite, the query's sum becomes NaN.
    void (*attend_tile)(const AttentionTile & tile);
    void (*attend_panel)(const AttentionPanel & panel);

    // The softmax of each lane over many tiles, in two passes. The first brings most (n_panels, n_lanes), the largest logits so far,
    // and sums, of exp(logit - most), up to date with a tile; where a logit is not finite, the lane's sum becomes NaN. The second
    // writes the largest exp(logit - log_sum) of each key over all lanes; weights has memory up to a multiple of n_lanes keys.
    void (*add_exponentials)(const KeyTile & tile, float * most, float * sums);
    void (*largest_weights)(const KeyTile & tile, const float * log_sums, float * weights);

    // Add the products of rows (n_gram_rows, n) with each other, summed over the rows, to the upper half of gram (n, n).
    void (*add_gram)(const double * rows, size_t n, double * gram);

    // Solve gram x = right in place. gram: (n, n), of which the upper half is read and overwritten; positive definite
    void (*solve)(double * gram, size_t n, double * right);
};

// Those of hooks/instructions.h.
const Kernels & kernels();

// All that this library holds, fastest first; NULL ends them.
extern const Kernels * const all_kernels[];

} // namespace edgekv
