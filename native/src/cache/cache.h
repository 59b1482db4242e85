// The cache of a context: what it feeds, what every cell holds, and how it is compacted.
#pragma once

#include "cache/cells.h"
#include "cache/query_window.h"
#include "cache/shape.h"
#include "device/row_graphs.h"
#include "edgekv.h"
#include "rope/rope_turn.h"
#include "rope/rope_undo.h"
#include "rows/flat_cache.h"
#include "rows/host_rows.h"
#include "rows/memory.h"
#include "rows/recurrent_state.h"
#include "rows/windows.h"
#include "score/custom.h"
#include "score/score.h"
#include "score/weight_rows.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace edgekv {
struct Snapshot;
class Team;
class WoNorm;
}

// A layer as a compaction sees it: where its rows lie, and what the model says of it.
struct edgekv_layer : edgekv::FlatCache::Layer {
    std::vector<edgekv::WeightRows> projections; // W_O of every reader; none where nobody looks at them
    edgekv::WeightRows              w_v;         // of every query head, what makes its values of latents; none likewise
    std::vector<float>              sinks;       // of every query head; none in most models
};

namespace edgekv {

// Throws what opening a cache does, but for what lies in the weights themselves. The model may be loaded with no_alloc.
void require_openable(const llama_context & ctx, const edgekv_cache_params & params);

} // namespace edgekv

struct edgekv_cache {
    edgekv_cache(llama_context * ctx, const edgekv_cache_params & params);
    ~edgekv_cache();

    void clear();
    void feed(const llama_token * tokens, size_t n, bool want_logits, size_t n_draft = 0);
    void accept();
    void check_draft(size_t n) const; // throws Error for a longer draft than the cache was opened for
    void probe(const llama_token * tokens, size_t n, const uint32_t * part_ends, size_t n_parts);
    void compact(const edgekv_compaction_params & params, edgekv_compaction & result);
    void read(uint32_t layer, uint32_t head, bool values, void * dst, size_t dst_size, edgekv_rows & rows) const;
    void read_queries(uint32_t layer, bool probed, float * queries, int32_t * positions, uint32_t & n_rows, float & scale);

    uint64_t snapshot_bytes() const;
    void     save(uint64_t first, void * dst, size_t n) const;
    void     restore(const void * src, size_t size, bool with_rows);
    void     restore_rows(uint64_t first, const void * src, size_t n);

    bool              holds(const std::vector<uint32_t> & cells) const; // throws Error for another number of heads
    edgekv::HeadCells cells(uint32_t layer, uint32_t head) const; // throws Error where there is no such head
    uint32_t          n_kept(uint32_t layer, uint32_t head) const; // by the last eviction
    uint32_t          n_cells() const;                             // used per head, on average, rounded up
    uint32_t          n_free() const { return flat_.n_open() - n_filled_; }
    uint32_t          n_heads(uint32_t layer) const { return layer < layers_.size() ? layers_[layer].n_head_kv : 0; }
    uint32_t          n_query_heads(uint32_t layer) const { return layer < layers_.size() ? layers_[layer].n_head() : 0; }
    uint64_t          bytes() const;        // in the host's memory
    uint64_t          device_bytes() const; // of queries and the copy of states, where the keys lie on a device

    llama_context *  ctx;
    llama_kv_cache * kv; // llama.cpp's notes of the cells; NULL where no layer attends
    edgekv_shape     shape;
    int32_t          n_past    = 0; // position of the next token
    int32_t          rope_past = 0; // the position that RoPE will turn it by

  private:
    friend struct edgekv::Snapshot;

    // What a head keeps, from where it lies to where it goes.
    struct Move {
        const edgekv_layer *    layer;
        edgekv::FlatCache::Head from;
        edgekv::FlatCache::Head to;
        uint32_t                n;
    };

    void     check_tokens(const llama_token * tokens, size_t n) const;
    void     decode(const llama_token * tokens, size_t n, uint32_t n_before, size_t n_logits);
    void     check_logits(size_t token, int32_t position) const;
    void     fill(size_t n);
    uint32_t n_stand_ins() const { return n_past > 0 ? 1 : 0; } // cells that llama.cpp knows between batches
    void     stand_in(uint32_t n = 0);
    void     begin_batch();
    void     undo_batch();

    void     check_provided(const edgekv_compaction_params & params) const;
    uint32_t rows_of(const edgekv_compaction_params & params) const;
    void     list_parts(const edgekv_compaction_params & params);
    uint32_t max_protected(const edgekv_protection & protection) const;
    void     check_budgets(const edgekv_compaction_params & params) const;

    // Call f(layer, head) for the heads that share a pool of rows.
    template <typename F> void each_head_of(size_t pool, F f) const {
        for (uint32_t il = 0; il < layers_.size(); ++il) {
            for (uint32_t g = 0; layers_[il].pool == pool && g < layers_[il].n_head_kv; ++g) {
                f(il, g);
            }
        }
    }

    const edgekv::FlatCache::Head & head_of(uint32_t layer, uint32_t head) const;

    uint64_t            graph_bytes(bool host) const;
    bool                copies(const edgekv_layer & layer) const;
    edgekv::RowGraphs * graphs_of(const edgekv_layer & layer) const;
    edgekv::RowGraphs * moving_graphs(const edgekv_layer & layer) const;
    void                finish_graphs();
    void                score_by_graphs(const edgekv_compaction_params & params);
    void                add_gains(const edgekv_policy & policy, const std::vector<int32_t> & positions,
                                  edgekv::GraphQueries & queries) const;
    void                square_by_graphs(const edgekv_policy & policy);
    std::vector<float *> write_means(size_t pool, const edgekv_policy & policy, bool without_heavy, edgekv::Scratch & scratch) const;
    void                measure_by_graphs(const edgekv_policy & policy, edgekv::Scratch & scratch);
    bool                norms_by_graphs(uint32_t layer, size_t first, size_t n, edgekv::Scratch & scratch);
    void                begin_crossing();
    void                count_crossing(edgekv_compaction & result) const;

    edgekv::HostRows host_rows(uint32_t layer, uint32_t head, bool values, size_t n);
    edgekv::HostRows host_rows(const edgekv_layer & layer, bool values, size_t first, size_t n);
    edgekv::RopeTurn * turn_of(uint32_t layer) { return turns_.empty() ? nullptr : &turns_[layer]; }
    edgekv::Rows     rows_of_head(uint32_t layer, bool values, edgekv::HostRows & host, size_t n) const;
    edgekv::Rows     keys_before_rope(uint32_t layer, edgekv::HostRows & host, const edgekv::HeadCells & head) const;

    void             turn_ahead(uint32_t layer, uint32_t n_rows, uint32_t n_ahead, edgekv::Scratch & scratch) const;

    template <typename F>
    void with_head(uint32_t layer, uint32_t head, const edgekv_compaction_params & params, const edgekv::QueryRows & rows,
                   bool keys, bool values, edgekv::Scratch & scratch, F f);

    template <typename F> static void each_new(const edgekv::HeadCells & head, size_t first, size_t n, F f);
    void update_wo_norms(uint32_t layer, edgekv::Scratch & scratch);
    void norms_by_host(uint32_t layer, size_t first, size_t n, edgekv::Scratch & scratch);
    void score_custom(uint32_t layer, const edgekv_compaction_params & params, const edgekv::QueryRows & rows);
    void score_custom(uint32_t layer, uint32_t begin, uint32_t end, const edgekv_compaction_params & params,
                      const edgekv::QueryRows & rows);
    void score(uint32_t layer, uint32_t head, const edgekv_compaction_params & params, const edgekv::QueryRows & rows,
               edgekv::Scratch & scratch);
    void choose(uint32_t layer, uint32_t head, const edgekv_compaction_params & params, edgekv::Scratch & scratch);
    uint32_t largest_of(uint32_t budget) const;
    std::vector<uint32_t> divide_by_shares(const edgekv_compaction_params & params) const;
    void divide_layers(const edgekv_compaction_params & params);
    bool is_full(const edgekv_policy & policy) const;
    void share_out(const edgekv_compaction_params & params);
    void close_gaps(uint32_t layer, edgekv::Scratch & scratch);
    void reposition(uint32_t layer, int32_t end);
    std::vector<Move> heads_to_move() const;
    void              move_heads(std::vector<Move> & moves, edgekv::Team & team);

    edgekv_cache_params                params_;
    edgekv::FlatCache &                flat_;
    edgekv::FlatCache::Claim           claim_;
    uint32_t                           rotation_;       // run of the Hadamard rotation of stored keys; 0 = none
    uint32_t                           value_rotation_; // the same of values
    float                              softcap_;  // of the model's attention; 0 = none
    std::vector<edgekv_layer>          layers_;
    edgekv::CellArrays                 cells_;
    std::vector<edgekv::Scratch>       scratch_; // one a thread
    edgekv::RowCopy                    copy_k_;  // a head's rows, where they are read and moved in a copy
    edgekv::RowCopy                    copy_v_;
    std::vector<std::unique_ptr<edgekv::RowGraphs>> graphs_; // of pools on devices; NULL where the host works on the rows
    std::vector<uint8_t>               scored_;  // by pool: whether graphs scored it
    std::vector<uint8_t>               valued_;  // by pool: whether graphs made of its values what this step reads
    std::vector<uint8_t>               staged_;  // by layer: whether rows crossed to the host in this compaction
    uint64_t                           query_bytes_ = 0; // that crossed with them
    std::optional<edgekv::QueryWindow> window_;
    std::optional<edgekv::RecurrentState> state_;
    std::optional<edgekv::Windows>     windows_;
    std::vector<edgekv::RopeTurn>      turns_;   // of every layer's keys; none where they keep their positions
    std::vector<edgekv::RopeUndo>      undo_;    // of every layer's keys; none where nobody looks at them as they were before
    std::mutex                         turning_; // held by the thread that turns queries
    edgekv::CustomArrays               custom_;
    std::vector<edgekv::QueryRows>     parts_;   // rows that score in this compaction, each part of a probe by itself
    std::vector<uint32_t>              layer_budgets_; // cells of each head of a layer, on average
    std::vector<uint32_t>              budgets_;       // cells of each head
    std::vector<float>                 contest_;       // scratch for the scores of heads that share a budget
    uint32_t                           largest_   = 0; // cells that one head may keep
    uint32_t                           n_filled_  = 0; // open rows in use
    uint32_t                           n_drafted_ = 0; // tokens of the last batch that were neither accepted nor dropped
    uint32_t                           n_batch_   = 0; // tokens of that batch
    uint32_t                           n_fresh_   = 0; // tokens fed since the last compaction
    uint32_t                           n_missed_  = 0; // of these, tokens that another cache fed, and whose queries found no room here
    int32_t                            normed_    = 0; // positions before it have their norm1(V W_O)
};

namespace edgekv {

// Whether some rows are not worked on by the host in place. Then one thread does all that is left to the host.
bool is_staged(const edgekv_shape & shape, const edgekv_cache_params & params);

// Each has scratch of its own, so there are no more than layers. A device is read by one thread, and a scorer of the host's runs
// on the caller's.
size_t n_workers(const edgekv_shape & shape, const edgekv_cache_params & params);

CellParts cell_parts(const edgekv_shape & shape, const edgekv_cache_params & params);

ScratchSize scratch_size(const edgekv_shape & shape, const edgekv_cache_params & params);

// Scores that are compared at once: of the heads of a layer, or of all.
size_t contest_size(const edgekv_shape & shape, const edgekv_cache_params & params);

// Throw Error where layers of this cache cannot share cells as they would. ragged: sum of enum edgekv_ragged
void require_divisible(const FlatCache & flat, uint32_t ragged);

} // namespace edgekv
