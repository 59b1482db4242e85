// One compaction of a cache: score its cells, divide the budget, choose those that stay, and move them together.
#pragma once

#include "cache/cache.h"
#include "evict/team.h"
#include "score/score.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace edgekv {

// What is made says which cells stay: the constructor does all that can fail. It knows the cache as one that does not change, and
// writes to the cache's workspace alone. Then `commit` does what was made, once. A function changes the cache only if it is handed it.
class Compaction {
  public:
    // The cache must outlive it, and stay as it is until the commit. Throws Error and std::bad_alloc.
    Compaction(const edgekv_cache & cache, const edgekv_compaction_params & params);

    // Evict. `cache` is the one of the constructor. Nothing is allocated, and nothing fails but a device while rows move there:
    // then the cache is emptied, and Error is thrown.
    edgekv_compaction commit(edgekv_cache & cache);

  private:
    // What a head keeps, from where it lies to where it goes.
    struct Move {
        const edgekv_layer * layer;
        FlatCache::Head      from;
        FlatCache::Head      to;
        uint32_t             n;
    };

    enum class Outcome { nothing, counted, carried, evicted }; // no change; tokens are no longer fresh; so are scores; cells go

    // compact.cpp
    void     check_provided() const;
    uint32_t rows_of() const;
    void     list_parts();
    void     score_all();
    void     score_by(const QueryRows & rows);
    bool     is_first(const QueryRows & rows) const { return &rows == parts_.data(); } // of the parts
    void     choose_all();
    void     evict(edgekv_cache & cache);

    template <typename Work> void on_layers(Work work);
    template <typename Work> void on_heads(Work work);

    // budgets.cpp
    uint32_t              largest_of(uint32_t budget) const;
    uint32_t              max_protected() const;
    std::vector<uint32_t> divide_by_shares() const;
    void                  divide_layers();
    void                  check_budgets() const;
    bool                  is_full() const;
    void                  divide_heads();

    // heads.cpp
    bool        copies(const edgekv_layer & layer) const;
    RowGraphs * graphs_of(const edgekv_layer & layer) const;
    HostRows    host_rows(uint32_t layer, uint32_t head, bool values, size_t n);
    HostRows    host_rows(const edgekv_layer & layer, bool values, size_t first, size_t n);
    HostRows *  copied_queries(uint32_t layer, const QueryRows & rows);
    Rows        rows_of_head(uint32_t layer, bool values, HostRows & host, size_t n) const;
    Rows        keys_before_rope(uint32_t layer, HostRows & host, const HeadView & head) const;
    void        turn_ahead(uint32_t layer, uint32_t n_rows, Scratch & scratch) const;
    void        score_head(uint32_t layer, uint32_t head, const QueryRows & rows, Scratch & scratch);
    void        choose_head(uint32_t layer, uint32_t head, Scratch & scratch);
    HeadWork    work(uint32_t layer, uint32_t head) const { return work_.cells.at(cache_.row_of(layer, head)); }
    uint64_t    crossed_bytes() const;

    template <typename F>
    void with_head(uint32_t layer, uint32_t head, const QueryRows & rows, bool keys, bool values, Scratch & scratch, F f);

    // Call f(layer, head) for the heads that share a pool of rows.
    template <typename F> void each_head_of(size_t pool, F f) const {
        for (uint32_t il = 0; il < layers_.size(); ++il) {
            for (uint32_t g = 0; layers_[il].pool == pool && g < layers_[il].n_head_kv; ++g) {
                f(il, g);
            }
        }
    }

    // custom.cpp
    void score_custom(uint32_t layer, const QueryRows & rows);
    void score_custom(uint32_t layer, uint32_t begin, uint32_t end, const QueryRows & rows);

    // by_graphs.cpp
    void                 score_by_graphs(const QueryRows & rows);
    void                 add_gains(const std::vector<int32_t> & positions, GraphQueries & queries) const;
    void                 square_by_graphs();
    void                 measure_by_graphs(Scratch & scratch);
    std::vector<float *> write_means(size_t pool, bool without_heavy, Scratch & scratch) const;

    // wo_norms.cpp
    template <typename F> static void each_new(const HeadView & head, size_t first, size_t n, F f);
    void   update_wo_norms(uint32_t layer, Scratch & scratch);
    size_t norms_by_graphs(uint32_t layer, size_t n, Scratch & scratch);
    void   norms_by_host(uint32_t layer, size_t first, size_t n, Scratch & scratch);

    // move.cpp
    std::vector<Move> heads_to_move() const;
    RowGraphs *       moving_graphs(const edgekv_layer & layer) const;
    void              finish_graphs();
    void              close_gaps(edgekv_cache & cache, uint32_t layer, Scratch & scratch);
    void              reposition(edgekv_cache & cache, uint32_t layer, int32_t end);
    void              move_heads(edgekv_cache & cache);

    const edgekv_cache &              cache_;
    const std::vector<edgekv_layer> & layers_;
    const FlatCache &                 flat_;
    Workspace &                       work_;
    edgekv_policy                     policy_; // as it is for this compaction
    edgekv_compaction_params          params_;
    Traits                            traits_;
    std::vector<uint32_t>             by_shares_;
    Outcome                           outcome_     = Outcome::nothing;
    uint32_t                          largest_     = 0; // cells that one head may keep
    int64_t                           start_us_    = 0;
    int64_t                           chosen_us_   = 0;
    std::vector<uint32_t>             layer_budgets_; // cells of each head of a layer, on average
    std::vector<uint32_t>             budgets_;       // cells of each head
    std::vector<QueryRows>            parts_;  // rows that score, each part of a probe by itself
    std::vector<uint8_t>              scored_; // by pool: whether graphs scored it, by the rows that score now
    std::vector<uint8_t>              valued_; // by pool: whether graphs made of its values what this step reads
    std::vector<uint8_t>              staged_; // by layer: whether rows crossed to the host
    std::optional<HostRows>           queries_; // of a layer, by the rows that score now, where they are copied
    uint32_t                          queries_layer_ = 0;
    std::vector<Move>                 moves_;
    std::optional<Team>               team_;
};

} // namespace edgekv
