// The bookkeeping of a cache: which token every cell of every (layer, KV head) holds.
#pragma once

#include "context.h"
#include "edgekv.h"
#include "score.h"

#include <cstdint>
#include <vector>

struct ggml_tensor;

// One head's cells. `position` is indexed by cell, `order` lists the cells ascending by position.
struct edgekv_head {
    std::vector<int32_t>  position;
    std::vector<uint32_t> order;
    std::vector<uint8_t>  keep; // the last selection, by cell
};

struct edgekv_layer {
    ggml_tensor *            k;
    ggml_tensor *            v;
    uint32_t                 head_dim_k;
    uint32_t                 head_dim_v;
    std::vector<edgekv_head> heads;
};

struct edgekv_cache {
    edgekv_cache(llama_context * ctx, const edgekv_cache_params & params);

    void clear();
    void feed(const llama_token * tokens, size_t n, bool want_logits);
    void compact(const edgekv_policy & policy, const edgekv_protection & protection, uint32_t budget, edgekv_compaction & result);
    void read(uint32_t layer, uint32_t head, bool values, void * dst, size_t dst_size, edgekv_rows & rows) const;

    const edgekv_head & head(uint32_t layer, uint32_t head) const;
    uint64_t            bytes() const;

    llama_context *  ctx;
    llama_kv_cache & kv;
    edgekv_shape     shape;
    uint32_t         n_used = 0; // cells used per head: [0, n_used)
    int32_t          n_past = 0; // position of the next token

  private:
    void choose(edgekv_layer & layer, uint32_t il, const edgekv_policy & policy, const edgekv_protection & protection,
                uint32_t budget, edgekv::Scratch & scratch);
    void move(edgekv_layer & layer, uint32_t budget);

    uint32_t                     rotation_; // run of the Hadamard rotation of stored keys; 0 = none
    std::vector<edgekv_layer>    layers_;
    std::vector<edgekv::Scratch> scratch_; // one a thread
};
