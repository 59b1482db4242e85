// The bookkeeping of a cache: which token every cell of every (layer, KV head) holds, and what it carries.
#pragma once

#include "context.h"
#include "custom.h"
#include "edgekv.h"
#include "host_rows.h"
#include "query_window.h"
#include "score.h"

#include <cstdint>
#include <optional>
#include <vector>

// One head's cells. All but `order` are indexed by cell; `order` lists the cells ascending by position.
struct edgekv_head {
    std::vector<int32_t>  position;
    std::vector<uint32_t> order;
    std::vector<uint8_t>  keep;        // the last selection
    std::vector<float>    accumulated; // what scorings left with the cells, where a policy carries it
    std::vector<float>    next;        // the same after the running compaction
    std::vector<float>    wo_norm;     // norm1(V W_O), where a policy reads it
};

struct edgekv_layer {
    uint32_t                 il; // llama.cpp's number
    ggml_tensor *            k;
    ggml_tensor *            v;
    ggml_tensor *            w_o;
    uint32_t                 head_dim_k;
    uint32_t                 head_dim_v;
    uint32_t                 n_group; // query heads of one KV head
    std::vector<edgekv_head> heads;
};

struct edgekv_cache {
    edgekv_cache(llama_context * ctx, const edgekv_cache_params & params);

    void clear();
    void feed(const llama_token * tokens, size_t n, bool want_logits);
    void probe(const llama_token * tokens, size_t n);
    void compact(const edgekv_compaction_params & params, edgekv_compaction & result);
    void read(uint32_t layer, uint32_t head, bool values, void * dst, size_t dst_size, edgekv_rows & rows) const;
    void read_queries(uint32_t layer, bool probed, float * queries, int32_t * positions, uint32_t & n_rows, float & scale) const;

    const edgekv_head & head(uint32_t layer, uint32_t head) const;
    uint64_t            bytes() const;

    llama_context *  ctx;
    llama_kv_cache & kv;
    edgekv_shape     shape;
    uint32_t         n_used = 0; // cells used per head: [0, n_used)
    int32_t          n_past = 0; // position of the next token

  private:
    void check_tokens(const llama_token * tokens, size_t n) const;
    void decode(const llama_token * tokens, size_t n, int32_t p0, bool want_logits);

    void     check_provided(const edgekv_compaction_params & params) const;
    uint32_t rows_of(const edgekv_compaction_params & params) const;
    uint32_t value_rotation(uint32_t dim) const;

    edgekv::Rows rows_of_head(const edgekv_layer & layer, uint32_t head, bool values, edgekv::HostRows & host) const;

    void     update_wo_norms(edgekv_layer & layer, edgekv::Scratch & scratch);
    void     score_custom(const edgekv_layer & layer, uint32_t index, const edgekv_compaction_params & params, edgekv::HostRows & k,
                          edgekv::HostRows & v);
    void     choose(edgekv_layer & layer, uint32_t index, const edgekv_compaction_params & params, edgekv::Scratch & scratch);
    void     move(edgekv_layer & layer, uint32_t budget);

    edgekv_cache_params                params_;
    uint32_t                           rotation_; // run of the Hadamard rotation of stored keys; 0 = none
    float                              softcap_;  // of the model's attention; 0 = none
    std::vector<edgekv_layer>          layers_;
    std::vector<edgekv::Scratch>       scratch_; // one a thread
    std::vector<char>                  copy_k_;  // a staged layer's rows
    std::vector<char>                  copy_v_;
    std::optional<edgekv::QueryWindow> window_;
    edgekv::CustomArrays               custom_;
    uint32_t                           n_fresh_ = 0; // tokens fed since the last compaction
    int32_t                            normed_  = 0; // positions before it have their norm1(V W_O)
};

namespace edgekv {

// A layer is one task. A device is read by one thread, and a scorer of the host's runs on the caller's.
size_t n_workers(const edgekv_shape & shape, const edgekv_cache_params & params);

ScratchSize scratch_size(const edgekv_shape & shape, const edgekv_cache_params & params);

} // namespace edgekv
