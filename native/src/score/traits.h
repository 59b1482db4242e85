// The arrays that a policy reads, carries and compares. One table has a row for each formula; policies choose among its flags.
#pragma once

#include "edgekv.h"

#include <cstdint>

namespace edgekv {

struct Cells;
struct Scratch;

// Write base scores (n,) of the cells of a head, not pooled yet.
using Formula = void (*)(const edgekv_policy & policy, const Cells & cells, Scratch & scratch, float * scores);

struct Traits {
    Formula  formula;     // NULL: base scores are made of attention, or given
    bool     keys;        // of cells are read,
    bool     queries;     // and of the newest rows,
    bool     values;      // and those of cells, by base scores or what follows them
    bool     value_prior; // by base scores
    bool     before_rope; // keys as they were then
    bool     sharpened;   // attention, by gains of its own
    bool     largest;     // of the attention of all rows and query heads, and not the mean
    bool     accumulates; // a score is carried with every cell, to which every row is added once
    bool     starts_anew; // with every block of a prompt
    bool     every_row;   // must score, full cache or not
    uint32_t n_rows;      // newest rows of queries that score, where not every one does
    uint32_t ragged;      // how heads may come to keep different numbers of cells: sum of enum edgekv_ragged

    // Whether earlier compactions count in this one.
    bool carries_on(bool generating) const { return accumulates && (generating || !starts_anew); }

    // Rows of queries that are read when `block` tokens are fed between two compactions.
    uint32_t rows_read(uint32_t block) const { return every_row ? block : n_rows; }
};

// Of a policy whose base is known; a CUSTOM one has a scorer.
Traits traits_of(const edgekv_policy & policy);

// Throw Error unless every number of a policy is in its range, and all of them go together.
void check(const edgekv_policy & policy);

} // namespace edgekv
