// The rest of a head: one cell that stands for all archived tokens that the head lacks.
#pragma once

#include "edgekv.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

// Its value is the mean of their values. Its key is the mean of their keys, with the smallest change that gives every query of a probe
// log(n) more, so that a softmax gives it about what n such tokens would get. Rows are summed as they are stored: a rotation is linear.
class Rest {
  public:
    Rest(uint32_t dim_k, uint32_t dim_v);

    void add(bool values, const float * rows, size_t n); // of n tokens, (n, dim)
    void remove(bool values, const float * row);         // of one that was added

    // Find the change of a key that gives each of the queries 1 more, by ridge regression. gram: scratch of gram_size(dim_k)
    void fit(const edgekv_queries & queries, std::vector<double> & gram);

    // Write what stands for the n tokens that were added, n > 0.
    void write_key(uint32_t n, float * row) const;
    void write_mean_key(uint32_t n, float * row) const; // without the change
    void write_value(uint32_t n, float * row) const;

    static size_t gram_size(uint32_t dim_k) { return (size_t(dim_k) + n_at_once) * dim_k; }
    static size_t bytes(uint32_t dim_k, uint32_t dim_v) { return sizeof(Rest) + (2 * size_t(dim_k) + dim_v) * sizeof(double); }

  private:
    static constexpr size_t n_at_once = 4; // queries that go to the Gram matrix together, which is read and written once for them

    std::vector<double> keys_;   // (dim_k,) their sum
    std::vector<double> values_; // (dim_v,) likewise
    std::vector<double> change_; // (dim_k,) of a key, for 1 more
};

} // namespace edgekv
