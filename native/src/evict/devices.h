// What devices have to do with one compaction: which of them hold rows, what they found out about cells, and what crossed to the host.
#pragma once

#include "cache/cache.h"
#include "score/traits.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace edgekv {

// Call f(i, cell) for the newest cells of a head, i from 0, without the first newest of all; there may be fewer than n.
template <typename F> void each_new(const HeadView & head, size_t first, size_t n, F f) {
    for (size_t i = 0; i < n && first + i < head.n; ++i) {
        f(i, head.order[head.n - 1 - first - i]);
    }
}

// Graphs score, measure, move and turn what they can where rows lie on a device, so that the host reads numbers in place of rows. What
// they cannot do, the host does in a copy.
class Devices {
  public:
    // The cache, the policy and its traits are the compaction's, and outlive it.
    Devices(const edgekv_cache & cache, const edgekv_policy & policy, const Traits & traits, bool probed);

    void begin(); // nothing has crossed

    // The graphs that work on a layer's rows, and those of them that move rows; NULL = the host does.
    RowGraphs * of(const edgekv_layer & layer) const { return work_.graphs[layer.pool].get(); }
    RowGraphs * moving(const edgekv_layer & layer) const { return work_.moving(layer.pool); }
    void        finish() { work_.finish(); } // what was noted to move and to turn

    // The first n rows of one head, keys or values, or rows [first, first + n) of the pool, where the host can read them.
    HostRows rows(uint32_t layer, uint32_t head, bool values, size_t n);
    HostRows rows(const edgekv_layer & layer, bool values, size_t first, size_t n);

    // A layer's queries of some rows, copied once for all its heads; NULL if the host reads them where they lie.
    HostRows * queries(uint32_t layer, const QueryRows & rows);

    // Score what there are graphs for by some rows, the first ones or others, so that only scores come here. layer_budgets: cells of
    // each head of a layer
    void score_pools(const QueryRows & rows, bool first, const std::vector<uint32_t> & layer_budgets);
    bool has_scored(size_t pool) const { return scored_[pool] != 0; } // by the rows that score now

    void square_values();                   // that a prior reads
    void measure_values(Scratch & scratch); // how far values are from their mean, as CAOTE does; a heavy one from the mean of the others
    bool has_valued(size_t pool) const { return valued_[pool] != 0; } // whether it made of values what this step reads

    void norm_values(); // norm1(V W_O) of those that have none
    bool has_normed(size_t pool) const { return normed_[pool] != 0; }

    uint64_t crossed_bytes() const; // copied between the host and where the rows lie
    uint32_t n_staged() const;      // layers whose rows crossed to the host

  private:
    bool                 copies(const edgekv_layer & layer) const { return cache_.is_copied(flat_.pools()[layer.pool]); }
    void                 add_gains(const std::vector<int32_t> & positions, const std::vector<uint32_t> & layer_budgets,
                                   GraphQueries & queries) const;
    bool                 norm_pool(size_t pool);
    std::vector<float *> write_means(size_t pool, bool without_heavy, Scratch & scratch) const;

    const edgekv_cache &              cache_;
    const std::vector<edgekv_layer> & layers_;
    const FlatCache &                 flat_;
    Workspace &                       work_;
    const edgekv_policy &             policy_;
    const Traits &                    traits_;
    const bool                        probed_;  // queries are the last probe's
    std::vector<uint8_t>              scored_;  // by pool
    std::vector<uint8_t>              valued_;  // by pool
    std::vector<uint8_t>              normed_;  // by pool
    std::vector<uint8_t>              staged_;  // by layer
    std::optional<HostRows>           queries_; // of a layer, by the rows that score now, where they are copied
    uint32_t                          queries_layer_ = 0;
};

} // namespace edgekv
