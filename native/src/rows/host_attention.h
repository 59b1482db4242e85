// Attention over heads of unequal length, on the processor: one operation of a graph for a layer.
#pragma once

#include "rows/flat_cache.h"

namespace edgekv {

// What such an operation computes. It must outlive the graph.
struct HostAttention {
    const std::vector<FlatCache::Part> & parts; // of the batch
    uint32_t                             il;
    float                                scale;   // of Q K^T
    float                                softcap; // 0 = none

    // Whether rows of all layers of a cache are read so.
    static bool can_attend(const FlatCache & cache);

    // Bytes that one thread touches of its stack at most, over all layers.
    static size_t stack_bytes(const FlatCache & cache);

    // q (head_dim_k, n_head, n_tokens) F32, sinks (n_head,) or NULL -> (head_dim_v * n_head, n_tokens). A token sees every kept
    // cell of a head of its slot, the open ones filled before the batch, and those of its part of the batch up to its own. Sums are
    // taken in float32, in an order that depends neither on the number of threads nor on other parts.
    ggml_tensor * operation(ggml_context * context, ggml_tensor * q, ggml_tensor * sinks);
};

} // namespace edgekv
