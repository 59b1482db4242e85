// A batch as a flat cache sees it: which of its tokens go to which slot, and where their queries are kept.
#pragma once

#include "ggml.h"
#include "llama.h"

#include <cstdint>
#include <vector>

namespace edgekv {

class FlatCache;

// Adjacent tokens of a batch that go to one slot.
struct BatchPart {
    FlatCache * slot;
    uint32_t    n_tokens;
    int32_t     position; // that RoPE turns the first one by
};

// The parts of the batch that is decoded. There are none while edgekv decodes none.
class BatchParts {
  public:
    // Of a batch of n_tokens. What something else feeds goes to the first slot.
    std::vector<BatchPart> of(FlatCache & first, uint32_t n_tokens) const;

    // Write the positions of a batch. llama.cpp numbers it as if one sequence had fed it.
    void place(llama_pos * positions) const;

  private:
    friend class Batch;

    std::vector<BatchPart> parts_;
};

// What is decoded while it lives, by parts that have begun. It has written nothing yet.
class Batch {
  public:
    Batch(FlatCache & first, std::vector<BatchPart> && parts);
    ~Batch() { parts_.parts_.clear(); }
    Batch(const Batch &)             = delete;
    Batch & operator=(const Batch &) = delete;

  private:
    BatchParts & parts_;
};

// Where the newest queries of a slot go: to row first + true position % n of a layer's ring, nowhere while n is 0.
class QueryRings {
  public:
    // rings: of every layer, F32 (head_dim_k * n_head(), ...); none = queries are not kept
    void set(std::vector<ggml_tensor *> && rings);

    // lag: true position - position in the batch
    void aim(uint32_t first, uint32_t n, int32_t lag);

    const std::vector<ggml_tensor *> & rings() const { return rings_; }
    uint32_t                           first() const { return first_; }
    uint32_t                           n() const { return n_; }
    int32_t                            lag() const { return lag_; }
    uint32_t                           version() const { return version_; } // a graph holds for one

  private:
    std::vector<ggml_tensor *> rings_;
    uint32_t                   first_   = 0;
    uint32_t                   n_       = 0;
    int32_t                    lag_     = 0;
    uint32_t                   version_ = 0;
};

} // namespace edgekv
