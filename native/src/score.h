// Scoring: one narrow door between the cache and the policies.
#pragma once

#include "edgekv.h"
#include "rows.h"

#include <cstdint>
#include <vector>

namespace edgekv {

// The cells of one head. All arrays are indexed by cell; `order` lists the cells ascending by position.
struct Cells {
    const Rows &     keys;
    const int32_t *  positions; // (n,)
    const uint32_t * order;     // (n,)
    uint32_t         layer;
    uint32_t         head;
};

// What one thread needs while it scores; kept between calls so that compaction does not allocate.
struct Scratch {
    static constexpr uint32_t n_columns = 8; // elements of the keys whose medians are taken in one pass

    std::vector<float>  norms;  // (n,)
    std::vector<float>  scores; // (n,)
    std::vector<float>  line;   // (n_columns * n,) scores in position order, or columns of the keys
    std::vector<double> sums;   // (n + 1,) running sums for pooling
    std::vector<float>  row;    // (dim,)
    std::vector<float>  anchor; // (dim,)

    void reserve(size_t n_cells, size_t dim);

    size_t held() const;                             // bytes held now
    static size_t bytes(size_t n_cells, size_t dim); // bytes held after reserve(n_cells, dim)
};

void check(const edgekv_policy & policy);

// Write the score of every cell, (n,) float32, higher is kept.
void score(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores);

// KeyDiff (arXiv:2504.15364, eq. 7 and 8; anchors of Table 14, metrics of Table 15).
void score_keydiff(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores);

} // namespace edgekv
