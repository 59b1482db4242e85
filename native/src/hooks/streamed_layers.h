// Which weights of a model are streamed, and the memory that they are read to. The loader and the planner ask here.
#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace edgekv {

class WeightsFile;

// Layers are spread evenly, so that one that stays gives time to read the next.
struct StreamedLayers {
    uint32_t n_layers   = 0; // of the model
    uint32_t n_streamed = 0;
    bool     has_output = false; // a matrix of its own, so that the table of token embeddings is only looked up

    bool has(uint32_t layer) const { return uint64_t(layer + 1) * n_streamed / n_layers > uint64_t(layer) * n_streamed / n_layers; }

    // The layer whose weight this is, if it is streamed: its matrices are, its norms and vectors stay. -1 = it stays.
    int32_t layer_of(const std::string & weight, int64_t n_rows) const;

    // Whether the weight is a table of which rows are read when they are looked up, however many layers are streamed.
    bool is_table(const std::string & weight) const;

    // Names of the weights of a file that are streamed, and of tables, as a regular expression.
    std::string pattern(const WeightsFile & file) const;
};

// Whether a streamed weight holds experts, of which those are read that tokens choose.
bool is_experts(const ggml_tensor & weight);

// Bytes of streamed weights, layer by layer. There are two slots for layers: one computes, and the next is read. Experts have as much
// room as those of two layers take.
class StreamedSizes {
  public:
    static constexpr size_t n_slots = 2;

    explicit StreamedSizes(uint32_t n_layers) : in_slot_(n_layers), experts_(n_layers) {}

    size_t add(uint32_t layer, const ggml_tensor & weight); // returns where the weight begins in its slot; experts have no place there

    size_t n_bytes() const { return n_bytes_; }               // of all of them but experts
    size_t n_expert_bytes() const { return n_expert_bytes_; } // of all experts
    size_t slot() const;
    size_t slots() const;
    size_t room_for_experts() const;

  private:
    size_t              n_bytes_        = 0;
    size_t              n_expert_bytes_ = 0;
    std::vector<size_t> in_slot_;
    std::vector<size_t> experts_;
};

} // namespace edgekv
