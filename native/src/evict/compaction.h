// One compaction of a cache: score its cells, divide the budget, choose those that stay, and move them together.
#pragma once

#include "cache/cache.h"
#include "evict/devices.h"
#include "evict/head_moves.h"
#include "evict/select.h"
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
    void     list_staying();
    uint32_t max_protected() const;
    void     divide_layers();
    void     check_budgets() const;
    bool     is_full() const;
    void     divide_heads();

    // heads.cpp
    Rows        rows_of_head(uint32_t layer, bool values, HostRows & host, size_t n) const;
    Rows        keys_before_rope(uint32_t layer, HostRows & host, const HeadView & head) const;
    void        score_head(uint32_t layer, uint32_t head, const QueryRows & rows, Scratch & scratch);
    void        choose_head(uint32_t layer, uint32_t head, Scratch & scratch);

    template <typename F>
    void with_head(uint32_t layer, uint32_t head, const QueryRows & rows, bool keys, bool values, Scratch & scratch, F f);

    // custom.cpp
    void score_custom(uint32_t layer, const QueryRows & rows);
    void score_custom(uint32_t layer, uint32_t begin, uint32_t end, const QueryRows & rows);

    // wo_norms.cpp
    void update_wo_norms(uint32_t layer, Scratch & scratch);
    void norms_by_host(uint32_t layer, size_t first, size_t n, Scratch & scratch);

    // move.cpp
    HeadMoves         heads_to_move() const;
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
    Outcome                           outcome_     = Outcome::nothing;
    uint32_t                          largest_     = 0; // cells that one head may keep
    int64_t                           start_us_    = 0;
    int64_t                           chosen_us_   = 0;
    std::vector<uint32_t>             layer_budgets_; // cells of each head of a layer, on average
    std::vector<uint32_t>             budgets_;       // cells of each head
    std::vector<Staying>              staying_;       // what the host wants to stay in each head
    std::vector<QueryRows>            parts_;  // rows that score, each part of a probe by itself
    Devices                           devices_;
    std::optional<HeadMoves>          moves_;
    std::optional<Team>               team_;
};

} // namespace edgekv
