// Merging: what a head evicts goes into a few cells that stay, each the mean of many, which attention counts as many.
#pragma once

#include "cache/cells.h"
#include "evict/select.h"
#include "rows/host_rows.h"
#include "rows/rows.h"
#include "score/scratch.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

constexpr uint8_t  as_mean  = 2;          // marks a cell that stays, and takes others in
constexpr uint32_t unmerged = UINT32_MAX; // the group of a cell that is in none

// How many cells go into a mean with one: those that it is the mean of, 1 if it is itself alone, 0 if it was recalled.
// log_counts: as in Ranked
float count_of(const float * log_counts, size_t cell);

// Means of a head that an eviction leaves whatever their scores: policy.n_merged, if it merges, and at most an eighth of what is not
// protected.
size_t most_means(const edgekv_policy & policy, const Ranked & cells, const edgekv_protection & protection, size_t n_keep);

// Cells of a head that shall become means at an eviction, beside those that are means: cells.most_means together.
size_t n_new_means(const edgekv_policy & policy, const Ranked & cells, size_t n_keep);

// Once cells are marked to stay: mark n_new of the others to stay, evenly over the text, and all means `as_mean`. Recalled cells become
// none.
void mark_means(const edgekv_policy & policy, const Ranked & cells, size_t n_new, uint8_t * keep);

// Write the group of each of a head's cells: that of the mean with the nearest key, after two rounds of k-means. Groups are counted
// by position; a mean stays in its own, with the weight of its count. keep: by mark_means
void group_cells(const Ranked & cells, const Rows & keys, const uint8_t * keep, Scratch & scratch, uint32_t * group);

// Write the mean of every group to the cell that stays of it: its rows, which keep their bytes where nothing came to it, and its count.
// work: with the groups. values: NULL if a latent is key and value
void merge_cells(const HeadCells & head, const HeadWork & work, HostRows & keys, HostRows * values, Scratch & scratch);

} // namespace edgekv
