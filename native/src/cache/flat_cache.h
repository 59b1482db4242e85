// The rows of a KV cache in which every head has a number of its own.
#pragma once

#include "edgekv.h"
#include "ggml.h"
#include "rope/key_rope.h"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace edgekv {

// Keys lie in pools of rows, one for all heads of a device that have the same shape, and values beside them. A head owns
// a run of rows: those that the last compaction kept, then open ones, equally many in every head, which take the next
// tokens. So one mask, aligned to where the open rows begin, serves all heads of all layers.
class FlatCache {
  public:
    struct Head {
        uint32_t first; // row in its pool
        uint32_t kept;
    };

    struct Layer {
        uint32_t          il; // llama.cpp's number
        size_t            pool;
        uint32_t          first_head; // counted over all layers
        ggml_tensor *     k; // (head_dim_k, rows) of the whole pool
        ggml_tensor *     v;
        std::vector<Head> heads;
    };

    struct Pool {
        ggml_context * context;
        ggml_tensor *  k;
        ggml_tensor *  v;
        uint32_t       n_heads;
        uint32_t       offset; // rows of the pools before
        uint64_t       n_used; // rows, while they are divided
    };

    // The newest queries of every layer: row first + true position % n of `rows`, none while n is 0.
    struct Queries {
        std::unordered_map<uint32_t, ggml_tensor *> rows;  // by il, F32 (head_dim_k * n_head, ...)
        std::unordered_map<uint32_t, float>         scale; // of Q K^T, by il
        uint32_t                                    first = 0;
        uint32_t                                    n     = 0;
        int32_t                                     lag   = 0; // true position - position in the batch
    };

    explicit FlatCache(const edgekv_layout & layout);

    // While it lives, what this thread makes as a model's plain cache becomes a flat one.
    class Request {
      public:
        explicit Request(const edgekv_layout & layout);
        ~Request();
        Request(const Request &)             = delete;
        Request & operator=(const Request &) = delete;
    };

    // Says, while it lives, that a model's plain cache is being made, and not a part of another kind of cache.
    class Plain {
      public:
        Plain();
        ~Plain();
        Plain(const Plain &)             = delete;
        Plain & operator=(const Plain &) = delete;
    };

    // A flat cache where this thread makes a plain one and one is asked for, else NULL.
    static std::unique_ptr<FlatCache> requested();

    // Give a layer rows of the pools in `context`, which are allocated later.
    void add_layer(ggml_context * context, bool host, uint32_t il, uint32_t n_head_kv, ggml_type type_k, uint32_t head_dim_k,
                   ggml_type type_v, uint32_t head_dim_v);

    uint32_t                   n_cells() const { return layout_.n_cells; } // of every head on average
    uint32_t                   n_cells_max() const;                        // of one head
    const std::vector<Layer> & layers() const { return layers_; }
    const std::vector<Pool> &  pools() const { return pools_; }
    const Layer &              layer(uint32_t il) const { return layers_[index_.at(il)]; }
    uint32_t                   n_heads() const { return n_heads_; }
    uint32_t                   n_rows() const { return n_heads_ * layout_.n_cells; }
    uint32_t                   n_open() const { return n_open_; }   // rows of every head that are not kept ones
    uint64_t                   n_kept() const { return n_kept_; }     // rows kept by all heads
    uint32_t                   max_kept() const { return max_kept_; } // by the head that keeps most
    uint32_t                   version() const { return version_; } // a graph holds for one version
    uint32_t                   n_nodes() const;                     // graph nodes that it takes beyond llama.cpp's own, at most
    bool                       on_device() const { return on_device_; }

    // Divide the rows anew: kept (n_heads,) of every head, in the order of the layers; the rest is open, in equal parts.
    // Rows do not move by this, and nothing is allocated. Throws Error, and changes nothing, where a pool has too few rows.
    void divide(const std::vector<uint32_t> & kept);
    void clear(); // nothing kept

    // Whether the rows can be divided so, and then have n_open rows of every head open.
    bool fits(const std::vector<uint32_t> & kept, uint32_t n_open) const;

    void changed() { ++version_; }

    uint32_t n_filled = 0;     // open rows in use before the batch that is decoded next
    bool     written  = false; // whether that batch may have written rows, of keys, values and queries
    bool     taken    = false; // whether an edgekv_cache is open
    Queries  queries;

    std::unordered_map<uint32_t, KeyRope> ropes; // of the keys, by il, as the newest graph applies it
    uint32_t rotation_k = 0; // run of the Hadamard rotation that it gives keys; 0 = none
    uint32_t rotation_v = 0; // the same of values

  private:
    template <typename Kept> void divide_by(Kept kept); // kept(head) of every head

    edgekv_layout                        layout_;
    std::vector<Pool>                    pools_;
    std::vector<Layer>                   layers_;
    std::unordered_map<uint32_t, size_t> index_; // by il
    uint32_t                             n_heads_   = 0;
    uint32_t                             n_open_    = 0;
    uint64_t                             n_kept_    = 0;
    uint32_t                             max_kept_  = 0;
    uint32_t                             version_   = 0;
    bool                                 on_device_ = false;
};

} // namespace edgekv
