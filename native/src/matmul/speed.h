// How fast products are, in G operations a second of processor time (two for each weight and column).
#pragma once

#include "ggml-cpp.h"
#include "matmul/products.h"

#include <cstdint>
#include <string>
#include <vector>

namespace edgekv {

constexpr int n_turns = 9; // of which a median is taken

double median(std::vector<double> values);

// As many sums of products of bytes as a loop on registers does, once: the limit of products whose weights have four bits. 0 where no
// loop is known for a set of instructions.
double limit_rate(const std::string & instructions);

// A product of random weights and columns, computed as a graph of ggml's on the calling thread.
class MeasuredProduct {
  public:
    // depth: a multiple of the type's block. With n_experts, each has so many rows, and each column chooses n_chosen of them.
    MeasuredProduct(ggml_type type, int64_t depth, int64_t n_rows, int64_t n_columns, int32_t n_experts = 0, int32_t n_chosen = 0);

    // Compute it as the library does now, a few milliseconds long.
    double rate();

  private:
    ggml_context_ptr     context_;
    ggml_cgraph *        graph_;
    std::vector<uint8_t> work_;
    double               operations_;
    int                  n_repeats_;
};

} // namespace edgekv
