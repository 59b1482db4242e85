// Attention over a flat cache: what the patched llama.cpp calls while it builds a graph and fills its inputs.
#pragma once

#include "rows/host_attention.h"
#include "rows/flat_cache.h"
#include "rows/strided_heads.h"

#include <deque>
#include <optional>

struct llama_ubatch;

namespace edgekv {

// The part of one graph that reads and writes a flat cache. It holds for one layout and one number of tokens of each slot.
class FlatGraph {
  public:
    // cache: the first slot, whose batch it is. With `largest` every head is as long as a head may become, and attention takes the
    // most nodes: such a graph reserves the memory of all later ones.
    FlatGraph(ggml_context * context, FlatCache & cache, uint32_t n_tokens, bool largest);

    bool can_reuse(uint32_t n_tokens) const;
    void set_input(const llama_ubatch & ubatch) const;

    // Store the keys and values of a batch, and attend to all cells: q (head_dim_k, n_head, n_tokens), k and v likewise
    // with n_head_kv -> (head_dim_v * n_head, n_tokens). A layer that reads the rows of an earlier one has no k and v. Of flash
    // attention: sinks (n_head,) or NULL, scale of Q K^T, softcap (0 = none).
    ggml_tensor * attend(ggml_context * context, ggml_cgraph * graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                         ggml_tensor * sinks, uint32_t il, float scale, float softcap);

    // The same where a row is a latent, k (head_dim_k, 1, n_tokens): every head makes its own value of what it reads,
    // by its matrix of w_v (head_dim_v, n_value, n_head) -> (n_value * n_head, n_tokens).
    ggml_tensor * attend_latents(ggml_context * context, ggml_cgraph * graph, ggml_tensor * q, ggml_tensor * k,
                                 ggml_tensor * w_v, ggml_tensor * sinks, uint32_t il, float scale);

    // Attend to the ring of a layer with a window, as llama.cpp keeps it: k (head_dim_k, n_head_kv, cells), v likewise, mask
    // (cells, n_tokens). NULL if ggml's own attention has to: on a device, and of rows that no tile holds.
    ggml_tensor * attend_window(ggml_context * context, ggml_cgraph * graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                ggml_tensor * mask, ggml_tensor * sinks, float scale, float softcap);

  private:
    // Adjacent heads of one length, which one call serves.
    struct Run {
        size_t   begin;
        size_t   end;
        uint32_t first; // row
        uint32_t open;
    };

    const FlatCache::Pool & pool_of(const FlatCache::Layer & layer) const { return cache_.pools()[layer.pool]; }
    std::vector<Run>        runs_of(const FlatCache::Layer & layer) const;

    uint32_t         n_read(const FlatCache::Layer & layer, const Run & run) const;
    ggml_tensor *    rows_of(ggml_context * context, ggml_tensor * rows, const FlatCache::Layer & layer, const Run & run) const;
    ggml_tensor *    mask_of(ggml_context * context, const FlatCache::Layer & layer, const Run & run);
    ggml_tensor *    places_of(ggml_context * context, const FlatCache::Layer & layer);
    ggml_tensor *    attend_run(ggml_context * context, ggml_tensor * q, ggml_tensor * sinks, const FlatCache::Layer & layer,
                                const Run & run, float scale, float softcap);
    ggml_tensor *    attend_strided(ggml_context * context, ggml_tensor * q, const FlatCache::Layer & layer, float scale, float softcap);
    void             keep_queries(ggml_context * context, ggml_cgraph * graph, ggml_tensor * q, uint32_t il);
    void             store(ggml_context * context, ggml_cgraph * graph, ggml_tensor * pool, ggml_tensor * rows, ggml_tensor * places);

    // What a part of the batch needs of a graph.
    struct Slot {
        uint32_t      version;              // of its layout
        ggml_tensor * query_rows = nullptr; // I64, where its newest queries go
    };

    FlatCache &                  cache_; // where all slots have the same, or there is one
    FlatCache::Notes &           notes_;
    std::vector<BatchPart> parts_; // their positions are those of the first batch
    std::vector<Slot>            slots_; // of the parts
    uint32_t           n_tokens_;
    bool               largest_;
    uint32_t           max_open_;
    uint32_t           n_visible_; // open rows that it attends to
    ggml_tensor *      mask_ = nullptr; // F16 (columns, n_tokens): column max_open_ is the first open row; none on the host

    // By pool, I64 (n_tokens * n_heads), by layer, token, head: where keys and values go. For a device as floats, since ggml's Vulkan copies
    // no integers of 64 bits.
    std::vector<ggml_tensor *> rows_;

    // By pool, on its device: copies of the two, of which layers and heads read a part. A part of the host's would be sent by itself.
    std::vector<ggml_tensor *> lists_;
    std::vector<ggml_tensor *> masks_;
    std::optional<StridedHeads> strided_; // of a graph for one token
    std::deque<HostAttention>   on_host_; // of every layer
    std::deque<WindowAttention> windows_;
};

} // namespace edgekv
