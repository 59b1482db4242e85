// The cache of a context: what it feeds, and what every cell holds. A Compaction (evict/compaction.h) evicts cells of it.
#pragma once

#include "cache/cells.h"
#include "cache/query_window.h"
#include "cache/shape.h"
#include "cache/staging.h"
#include "cache/workspace.h"
#include "edgekv.h"
#include "rows/flat_cache.h"
#include "rows/memory.h"
#include "rows/recurrent_state.h"
#include "rows/windows.h"
#include "score/weight_rows.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace edgekv {
class Compaction;
class Devices;
class HeadMoves;
struct Snapshot;
}

// A layer as a compaction sees it: where its rows lie, and what the model says of it.
struct edgekv_layer : edgekv::FlatCache::Layer {
    std::vector<edgekv::WeightRows> projections; // W_O of every reader; none if nobody looks at them
    edgekv::WeightRows              w_v;         // of every query head, what makes its values of latents; none likewise
    std::vector<float>              sinks;       // of every query head; none in most models
};

namespace edgekv {

// Throws what opening a cache does, but for what lies in the weights themselves. The model may be loaded with no_alloc.
void require_openable(const llama_context & ctx, const edgekv_cache_params & params);

} // namespace edgekv

// What a recall gives to every head.
struct edgekv_recalled {
    uint32_t              n;              // tokens of a head on average, rounded up
    uint32_t              most;           // of one head
    std::vector<uint32_t> counts;         // (n_heads,) tokens that each gets
    std::vector<int32_t>  positions;      // (n_heads, most) ascending of each, and behind them what it does not get
    std::vector<int32_t>  rope_positions; // (n_heads, most) likewise, by which their keys are turned
};

struct edgekv_cache {
    edgekv_cache(llama_context * ctx, const edgekv_cache_params & params);
    ~edgekv_cache();

    void clear();
    void feed(const llama_token * tokens, size_t n, bool want_logits, size_t n_draft = 0);

    // Feed several caches of one context at once. Each part gets the row of its logits. On failure every cache is as before.
    static void feed_together(edgekv_part * parts, size_t n_parts);

    void accept();
    void check_draft(size_t n) const; // throws Error for a longer draft than the cache was opened for
    void probe(const llama_token * tokens, size_t n, const uint32_t * part_ends, size_t n_parts);
    void drop_draft() { n_drafted_ = 0; } // that was not accepted

    // The queries of one KV head that the newest n_rows tokens of the last probe have, 0 = all: (n_group, n, head_dim_k) and the
    // positions (n,), which go where the caller says. They come from the copy of the layer's, or if it is NULL from where they lie.
    edgekv_queries probe_queries(uint32_t layer, uint32_t head, uint32_t n_rows, float * queries, int32_t * positions,
                                 edgekv::HostRows * copied = nullptr) const;
    edgekv::HostRows copied_probe(uint32_t layer, uint32_t n_rows) const; // of a layer, by one read; the next copy ends it

    // Lay the rows out anew, with n (n_heads,) before the open ones of every head: those of its cells, without what the last recall gave
    // unless something was fed since, and others for what is recalled. Rows and cells are still where they were.
    void make_room(const std::vector<uint32_t> & n);
    void lose_probe_keys(); // because rows lie elsewhere now

    // Give the last of these rows, which have their keys and values, to tokens.
    void take_recalled(edgekv_recalled && given) noexcept;

    // Whether a key, or the next token, has another RoPE position than its own.
    bool is_turned() const;

    // Whether heads may hold different numbers of cells: those of a cache that is opened for it, or for a recall if a graph can attend.
    bool takes_unlike_heads() const { return params_.ragged != 0 || takes_unevenly(); }
    bool takes_unevenly() const;

    // Give the next open rows, which have their rows, to the next n tokens, as if they were fed.
    void take_refilled(uint32_t n);
    void require_refillable() const; // throws Error where decoding a token leaves more than its rows

    // Newest tokens whose cells can be dropped: the cache is then as it was before they were fed.
    uint32_t n_droppable() const;
    void     drop(uint32_t n); // throws Error for more
    void read(uint32_t layer, uint32_t head, bool values, void * dst, size_t dst_size, edgekv_rows & rows) const;
    void read_queries(uint32_t layer, bool probed, float * queries, int32_t * positions, uint32_t & n_rows, float & scale);

    // Snapshots without the rows that a file has.
    uint64_t snapshot_bytes(const edgekv::FiledRows & filed) const;
    void     save(const edgekv::FiledRows & filed, uint64_t first, void * dst, size_t n) const;
    void     restore(const void * src, size_t size, bool with_rows); // a whole one
    void     restore_rows(const edgekv::FiledRows & filed, uint64_t first, const void * src, size_t n);

    void              allow(uint32_t n_cells); // of every head on average, from the next compaction on; throws Error for too many
    bool              holds(const std::vector<uint32_t> & cells) const; // throws Error for another number of heads
    edgekv::HeadCells cells(uint32_t layer, uint32_t head);        // throws Error where there is no such head
    edgekv::HeadView  cells(uint32_t layer, uint32_t head) const;  // likewise
    uint32_t          n_kept(uint32_t layer, uint32_t head) const; // by the last eviction
    uint32_t          n_cells() const;                             // used per head, on average, rounded up
    uint32_t          n_free() const { return flat_.n_open() - n_filled_; }
    uint32_t          n_open_used() const { return n_filled_; }   // cells of every head since the last eviction, the newest last
    uint32_t          n_recalled() const { return n_recalled_; }  // cells of every head on average that the last recall gave, if nothing was fed since
    uint32_t          n_recalled(uint32_t layer, uint32_t head) const; // those of one head, its last cells
    uint32_t          n_probe() const { return window_ ? window_->n_probe() : 0; } // tokens of the last probe
    uint32_t          n_probe_keys() const { return window_ && window_->has_probe_keys() ? n_probe() : 0; } // that lie behind the cells
    void              go_on_at(int32_t rope_position); // RoPE turns the next token by it
    uint32_t          rotation() const { return rotation_; } // of stored keys and of queries
    uint32_t          value_rotation() const { return value_rotation_; } // of stored values
    size_t            first_row(uint32_t layer, uint32_t head) const { return head_of(layer, head).first; } // of its pool
    const std::vector<edgekv_layer> & layers() const { return layers_; }
    const std::vector<edgekv::FlatCache::Pool> & pools() const { return flat_.pools(); }

    // Whether the host works on a pool's rows in a copy, and not where they lie.
    bool is_copied(const edgekv::FlatCache::Pool & pool) const { return staging_ != edgekv::Staging::automatic || !pool.host; }
    bool is_copied() const { return edgekv::is_staged(shape, staging_); } // some of them, at least

    // Rows [first, first + n) of a layer's pool, keys or values, where the host can read them. The next copy ends a copy.
    edgekv::HostRows host_rows(const edgekv_layer & layer, bool values, size_t first, size_t n) const;

    uint32_t          n_heads(uint32_t layer) const { return layer < layers_.size() ? layers_[layer].n_head_kv : 0; }
    uint32_t          n_query_heads(uint32_t layer) const { return layer < layers_.size() ? layers_[layer].n_head() : 0; }
    uint64_t          bytes() const;        // in the host's memory
    uint64_t          device_bytes() const; // of queries and the copy of states, where the keys lie on a device

    // Room for compactions, which is theirs while they work, and no part of the cache's state.
    edgekv::Workspace & workspace() const { return *work_; }
    edgekv::HeadWork    work(uint32_t layer, uint32_t head) const { return work_->cells.at(row_of(layer, head)); }

    llama_context *  ctx;
    llama_kv_cache * kv; // llama.cpp's notes of the cells; NULL if no layer attends
    edgekv_shape     shape;
    int32_t          n_past    = 0; // position of the next token
    int32_t          rope_past = 0; // the position that RoPE will turn it by

  private:
    friend struct edgekv::Snapshot;
    friend class edgekv::Compaction;
    friend class edgekv::Devices;
    friend class edgekv::HeadMoves;

    // Tokens of a cache within a batch, n_before tokens after those that were fed, with logits of the last n_logits.
    struct Batched {
        edgekv_cache *      cache;
        const llama_token * tokens;
        size_t              n;
        uint32_t            n_before;
        size_t              n_logits;
    };

    void        check_tokens(const llama_token * tokens, size_t n) const;
    static void decode(const std::vector<Batched> & parts);
    void        check_logits(size_t token, int32_t position) const;
    void        fill(size_t n);
    void        note_queries(const Batched & part);
    bool        is_shared() const { return root_.n_slots() > 1; } // with other caches

    // Cells that llama.cpp knows between batches: none of several sequences, which it takes for one.
    uint32_t n_stand_ins() const { return n_past > 0 && !is_shared() ? 1 : 0; }
    void     stand_in(uint32_t n = 0);
    llama_kv_cells own_cells(int32_t fed, int32_t rope_end) const; // llama.cpp's, as if so many tokens had been fed
    void     begin_batch();
    void     undo_batch();

    const edgekv::FlatCache::Head & head_of(uint32_t layer, uint32_t head) const;
    size_t                          row_of(uint32_t layer, uint32_t head) const; // of its first cell, among all cells

    edgekv_cache_params                params_;
    edgekv::Staging                    staging_;
    edgekv::FlatCache &                root_; // the context's first slot
    edgekv::FlatCache &                flat_; // the slot of this cache
    edgekv::FlatCache::Claim           claim_;
    uint32_t                           rotation_;       // run of the Hadamard rotation of stored keys; 0 = none
    uint32_t                           value_rotation_; // the same of values
    float                              softcap_;  // of the model's attention; 0 = none
    std::vector<edgekv_layer>          layers_;
    edgekv::CellArrays                 cells_;
    std::unique_ptr<edgekv::Workspace> work_;
    std::optional<edgekv::QueryWindow> window_;
    std::optional<edgekv::RecurrentState> state_;
    std::optional<edgekv::Windows>     windows_;
    uint32_t                           n_filled_  = 0; // open rows in use
    uint32_t                           n_recalled_ = 0; // cells of every head on average that the last recall gave, if nothing was fed since
    std::vector<uint32_t>              recalled_;       // those of every head
    uint32_t                           n_drafted_ = 0; // tokens of the last batch that were neither accepted nor dropped
    uint32_t                           n_batch_   = 0; // tokens of that batch
    uint64_t                           draft_     = 0; // which one of the context's it was
    uint32_t                           n_fresh_   = 0; // tokens fed since the last compaction
    uint32_t                           n_missed_  = 0; // of these, tokens that another cache fed, and whose queries found no room here
    int32_t                            normed_    = 0; // positions before it have their norm1(V W_O)
};

namespace edgekv {

// Call f(layer, head) for the heads that share a pool of rows.
template <typename F> void each_head_of(const std::vector<edgekv_layer> & layers, size_t pool, F f) {
    for (uint32_t il = 0; il < layers.size(); ++il) {
        for (uint32_t g = 0; layers[il].pool == pool && g < layers[il].n_head_kv; ++g) {
            f(il, g);
        }
    }
}

// Throw Error if layers of this cache cannot share cells as they would. ragged: sum of enum edgekv_ragged
void require_divisible(const FlatCache & flat, uint32_t ragged);


} // namespace edgekv
