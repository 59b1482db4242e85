// What policies see of a head, by which its cells are scored, and those that stay are marked.
#include "evict/choose.h"
#include "evict/compaction.h"

#include <algorithm>
#include <cmath>

using namespace edgekv;

Rows Compaction::rows_of_head(uint32_t il, bool values, HostRows & host, size_t n) const {
    const edgekv_layer & layer = layers_[il];
    const uint32_t       dim   = values ? layer.head_dim_v : layer.head_dim_k;
    return Rows({ sizeof(edgekv_rows), (values ? layer.v : layer.k)->type, host.row(0), n, host.stride(), dim,
                  values ? cache_.value_rotation_ : cache_.rotation_ });
}

// The keys of a head as they were before RoPE, which turned them by the positions that they have there now.
Rows Compaction::keys_before_rope(uint32_t il, HostRows & host, const HeadView & head) const {
    const edgekv_layer & layer = layers_[il];
    return Rows({ sizeof(edgekv_rows), layer.k->type, host.row(0), head.n, host.stride(), layer.head_dim_k, cache_.rotation_ },
                work_.undo[il].turns() ? &work_.undo[il] : nullptr, head.rope_positions());
}

// Call f(where to write what is found out about a head, what policies see of its cells).
template <typename F>
void Compaction::with_head(uint32_t il, uint32_t g, const QueryRows & rows, bool keys, bool values, Scratch & scratch, F f) {
    const edgekv_layer & layer      = layers_[il];
    const bool           scored     = devices_.has_scored(layer.pool); // then only the positions of queries are missing
    const bool           copied     = values && !devices_.has_valued(layer.pool);
    const uint32_t       n_rows     = (keys || scored) && traits_.queries ? rows.n : 0;
    const HeadView       head       = cache_.cells(il, g);
    const HeadWork       found      = cache_.work(il, g);
    const float *        given      = is_first(rows) ? found.score : found.of_part;
    HostRows             k          = devices_.rows(il, g, false, keys ? head.n : 0);
    HostRows             v          = devices_.rows(il, g, true, copied ? head.n : 0);
    const Rows           value_rows = rows_of_head(il, true, v, head.n);

    edgekv_queries queries = { sizeof(queries), scratch.window.data(), scratch.positions.data(), layer.n_group, n_rows,
                               layer.head_dim_k, 0, 1.0f, cache_.softcap_, layer.sinks.empty() ? nullptr : &layer.sinks[g * layer.n_group] };
    if (n_rows > 0 && scored) {
        cache_.window_->each_row(params_.probed != 0, cache_.n_past, rows, cache_.n_past - cache_.rope_past,
                                 [&](uint32_t w, uint32_t, int32_t position, int32_t) { scratch.positions[w] = position; });
        queries.n_seen = scratch.positions[n_rows - 1] + 1;
    } else if (n_rows > 0) {
        const std::lock_guard<std::mutex> lock(work_.turning); // heads of a layer share what turns their queries
        queries.scale  = cache_.window_->read(il, g * layer.n_group, layer.n_group, params_.probed != 0, cache_.n_past, rows, true,
                                              cache_.n_past - cache_.rope_past, work_.turn_of(il), scratch.window.data(),
                                              scratch.positions.data(), devices_.queries(il, rows));
        queries.n_seen = scratch.positions[n_rows - 1] + 1;
    }
    const bool  has_past = traits_.carries_on(params_.generating != 0);
    const bool  undone   = keys && traits_.before_rope;
    const Cells seen     = { undone ? keys_before_rope(il, k, head) : rows_of_head(il, false, k, head.n),
                             &value_rows,
                             head.position,
                             head.order,
                             has_past ? head.accumulated : nullptr,
                             head.wo_norm,
                             scored ? given : policy_.base == EDGEKV_BASE_CUSTOM ? work_.custom.by_cell_of(g) : nullptr,
                             devices_.has_valued(layer.pool) ? found.of_value : nullptr,
                             &queries,
                             il,
                             g };
    f(found, seen);
}

// The larger of each two of n scores, in place; one that is NaN stays.
static void take_larger(float * scores, const float * others, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        scores[i] = scores[i] >= others[i] || std::isnan(scores[i]) ? scores[i] : others[i];
    }
}

// Score every cell of a head by some rows. Of the parts of a probe, the first comes first, and a cell has the largest score.
void Compaction::score_head(uint32_t il, uint32_t g, const QueryRows & rows, Scratch & scratch) {
    const bool keys = traits_.keys && !devices_.has_scored(layers_[il].pool);
    with_head(il, g, rows, keys, traits_.value_prior, scratch, [&](const HeadWork & found, const Cells & seen) {
        const size_t n      = seen.keys.n();
        const bool   first  = is_first(rows);
        float *      scores = first ? found.score : scratch.scores.data();
        float *      next   = !traits_.accumulates ? nullptr : first ? found.next : scratch.norms.data();
        score_base(policy_, seen, layer_budgets_[il], scratch, scores, next);
        if (!first) {
            take_larger(found.score, scores, n);
        }
        if (!first && next != nullptr) {
            take_larger(found.next, next, n);
        }
        if (policy_.spread != EDGEKV_SPREAD_HEAD && policy_.softmax) {
            std::copy_n(found.score, n, found.softmax);
            normalise(policy_, n, found.softmax);
        }
    });
}

// Mark the cells of a head that stay. Nothing moves yet.
void Compaction::choose_head(uint32_t il, uint32_t g, Scratch & scratch) {
    const size_t   h      = layers_[il].first_head + g;
    const bool     values = policy_.weigh != EDGEKV_WEIGH_NONE;
    with_head(il, g, parts_[0], false, values, scratch, [&](const HeadWork & found, const Cells & seen) {
        choose(policy_, seen, found.score, *params_.protection, budgets_[h], staying_[h], scratch, found.keep);
    });
}
