#include "evict/merge.h"

#include "kernels/kernels.h"
#include "kernels/row_types.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

namespace {

constexpr int    n_rounds     = 2; // of k-means; more change little
constexpr size_t cells_a_mean = 8; // that are not protected: more means leave too few of them

// The mean (n_means, dim) nearest to a key; of equally near ones the first. squares (n_means,) of the means; products is scratch.
size_t nearest(const float * key, const float * means, const float * squares, size_t n_means, size_t dim, float * products) {
    kernels().dots(means, n_means, key, dim, products);
    size_t best = 0;
    for (size_t j = 0; j < n_means; ++j) { // the key's own square is the same for all
        products[j] = squares[j] - 2.0f * products[j];
        best        = products[j] < products[best] ? j : best;
    }
    return best;
}

// Write the mean of every group to the row of the cell that stays of it. counts (n_groups,) of all cells of each
void write_rows(const HeadCells & head, const HeadWork & work, HostRows & rows, size_t n_groups, const float * counts, Scratch & scratch) {
    const ggml_to_float_t   read  = row_to_float(rows.type());
    const ggml_from_float_t write = row_from_float(rows.type());
    const size_t            dim   = rows.dim();
    float *                 means = scratch.means.data();
    std::fill_n(means, n_groups * dim, 0.0f);
    for (size_t cell = 0; cell < head.n; ++cell) {
        if (work.group[cell] != unmerged) {
            read(rows.row(cell), scratch.anchor.data(), static_cast<int64_t>(dim));
            kernels().add_scaled(means + work.group[cell] * dim, count_of(head.log_count, cell), scratch.anchor.data(), dim);
        }
    }
    for (size_t cell = 0; cell < head.n; ++cell) {
        const uint32_t group = work.group[cell];
        if (work.keep[cell] == as_mean && counts[group] != count_of(head.log_count, cell)) { // else nothing came to it
            float * mean = means + group * dim;
            std::transform(mean, mean + dim, mean, [&](float x) { return x / counts[group]; });
            write(mean, rows.row(cell), static_cast<int64_t>(dim));
        }
    }
}

} // namespace

float count_of(const float * log_counts, size_t cell) {
    const float log_count = log_counts == nullptr ? 0.0f : log_counts[cell];
    if (log_count <= 0.0f) {
        return log_count < 0.0f ? 0.0f : 1.0f;
    }
    return std::round(std::exp(log_count));
}

size_t most_means(const edgekv_policy & policy, const Ranked & cells, const edgekv_protection & protection, size_t n_keep) {
    if (policy.n_merged == 0 && cells.log_counts == nullptr) {
        return 0;
    }
    size_t n_protected = 0;
    for (size_t i = 0; i < cells.n; ++i) {
        n_protected += is_protected(cells, i, protection);
    }
    const size_t eighth = (n_keep - std::min(n_keep, n_protected)) / cells_a_mean;
    return policy.n_merged > 0 ? std::min<size_t>(policy.n_merged, eighth) : eighth;
}

size_t n_new_means(const edgekv_policy & policy, const Ranked & cells, size_t n_keep) {
    const auto count = [&](auto is) { return static_cast<size_t>(std::count_if(cells.order, cells.order + cells.n, is)); };
    if (policy.n_merged == 0 || count([&](uint32_t cell) { return count_of(cells.log_counts, cell) > 0.0f; }) <= n_keep) {
        return 0;
    }
    const size_t n_means = count([&](uint32_t cell) { return is_mean(cells, cell); });
    return cells.most_means - std::min(cells.most_means, n_means);
}

void mark_means(const edgekv_policy & policy, const Ranked & cells, size_t n_new, uint8_t * keep) {
    if (policy.n_merged == 0) {
        return;
    }
    const auto is_new = [&](uint32_t cell) { return keep[cell] == 0 && count_of(cells.log_counts, cell) > 0.0f; };
    const auto n_gone = static_cast<size_t>(std::count_if(cells.order, cells.order + cells.n, is_new));
    size_t     n_old = 0, n_marked = 0, i_gone = 0;
    for (size_t i = 0; i < cells.n; ++i) {
        const uint32_t cell = cells.order[i];
        if (is_new(cell)) { // the middle one of each of n_new parts
            if (n_marked < n_new && i_gone == (2 * n_marked + 1) * n_gone / (2 * n_new)) {
                keep[cell] = as_mean;
                ++n_marked;
            }
            ++i_gone;
        } else if (keep[cell] != 0 && is_mean(cells, cell) && n_old + n_new < policy.n_merged) {
            keep[cell] = as_mean;
            ++n_old;
        }
    }
}

void group_cells(const Ranked & cells, const Rows & keys, const uint8_t * keep, Scratch & scratch, uint32_t * group) {
    const size_t dim     = keys.dim();
    float *      fixed   = scratch.means.data(); // what the means were, times their counts
    float *      means   = fixed + scratch.means.size() / 3;
    float *      sums    = means + scratch.means.size() / 3;
    uint32_t *   gone    = scratch.alive.data();
    size_t       n_means = 0, n_gone = 0;
    for (size_t i = 0; i < cells.n; ++i) {
        const uint32_t cell = cells.order[i];
        group[cell]         = unmerged;
        if (keep[cell] == as_mean) {
            const float count = count_of(cells.log_counts, cell);
            keys.read(cell, means + n_means * dim);
            std::transform(means + n_means * dim, means + (n_means + 1) * dim, fixed + n_means * dim, [&](float x) { return count * x; });
            scratch.counts[n_means] = count;
            group[cell]             = static_cast<uint32_t>(n_means++);
        } else if (keep[cell] == 0) {
            keys.read(cell, scratch.keys.data() + n_gone * dim);
            gone[n_gone++] = cell;
        }
    }
    for (int round = 0; round < n_rounds && n_means > 0; ++round) {
        float * totals   = scratch.norms.data(); // there are no more means than cells
        float * squares  = scratch.prior.data();
        float * products = scratch.line.data();
        kernels().squares(means, n_means, dim, squares);
        std::copy_n(fixed, n_means * dim, sums);
        std::copy_n(scratch.counts.data(), n_means, totals);
        for (size_t i = 0; i < n_gone; ++i) {
            const float * key   = scratch.keys.data() + i * dim;
            const float   count = count_of(cells.log_counts, gone[i]);
            const size_t  j     = nearest(key, means, squares, n_means, dim, products);
            group[gone[i]]      = static_cast<uint32_t>(j);
            kernels().add_scaled(sums + j * dim, count, key, dim);
            totals[j] += count;
        }
        for (size_t j = 0; j < n_means; ++j) {
            std::transform(sums + j * dim, sums + (j + 1) * dim, means + j * dim, [&](float x) { return x / totals[j]; });
        }
    }
}

void merge_cells(const HeadCells & head, const HeadWork & work, HostRows & keys, HostRows * values, Scratch & scratch) {
    float * counts   = scratch.counts.data();
    size_t  n_groups = 0;
    std::fill(scratch.counts.begin(), scratch.counts.end(), 0.0f);
    for (size_t cell = 0; cell < head.n; ++cell) {
        const uint32_t group = work.group[cell];
        if (group != unmerged) {
            counts[group] += count_of(head.log_count, cell);
            n_groups = std::max<size_t>(n_groups, group + 1);
        }
    }
    write_rows(head, work, keys, n_groups, counts, scratch);
    if (values != nullptr) {
        write_rows(head, work, *values, n_groups, counts, scratch);
    }
    for (size_t cell = 0; cell < head.n; ++cell) {
        if (work.keep[cell] == as_mean) {
            head.log_count[cell] = std::log(counts[work.group[cell]]);
        }
    }
}

} // namespace edgekv
