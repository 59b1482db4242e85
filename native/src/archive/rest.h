// The rest of a head: one cell that stands for all archived tokens that the head lacks.
#pragma once

#include "edgekv_archive.h"
#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

// Its value is the mean of their values. Its key is the mean of their keys, with the smallest change that gives every query of a probe
// log(n) more, so that a softmax gives it about what n such tokens would get. Rows are summed as they are stored: a rotation is linear.
// Of many segments some have their rows summed, evenly spread, so that a long archive has few values read.
class Rest {
  public:
    Rest(uint32_t dim_k, uint32_t dim_v);

    // Choose the segments of the positions [begin, end) whose rows are summed: 8 to 15 of them, or all if these could have too few tokens.
    //   held : positions that the head holds, ascending; n_most : others that it may get before it is written
    void begin(int32_t begin, int32_t end, const std::vector<int32_t> & held, uint32_t n_most);
    bool takes(int32_t position) const { return static_cast<uint32_t>(position) / EDGEKV_SEGMENT_TOKENS % every_ == 0; }

    void add(bool values, const float * rows, size_t n); // of n tokens that it takes, (n, dim)
    void remove(bool values, const float * row);         // of one that was added

    // Find the change of a key that gives each of the queries 1 more, by ridge regression. gram: scratch of gram_size(dim_k)
    void fit(const edgekv_queries & queries, std::vector<double> & gram);

    // Write what stands for n tokens, if some were added.
    void write_key(uint32_t n, float * row) const;
    void write_mean_key(float * row) const; // without the change
    void write_value(float * row) const;

    static size_t gram_size(uint32_t dim_k) { return (size_t(dim_k) + n_gram_rows) * dim_k; }
    static size_t bytes(uint32_t dim_k, uint32_t dim_v) { return sizeof(Rest) + (2 * size_t(dim_k) + dim_v) * sizeof(double); }

  private:
    static constexpr uint32_t n_sampled = 8; // segments, at least: a mean of a thousand tokens is known to a thirtieth of their deviation

    uint32_t            every_  = 1; // of so many segments one is summed
    uint32_t            n_keys_ = 0; // that were added; as many values are by the end
    std::vector<double> keys_;   // (dim_k,) their sum
    std::vector<double> values_; // (dim_v,) likewise
    std::vector<double> change_; // (dim_k,) of a key, for 1 more
};

} // namespace edgekv
