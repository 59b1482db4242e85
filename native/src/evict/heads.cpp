// What policies see of a head, by which its cells are scored, and those that stay are marked.
#include "evict/choose.h"
#include "evict/compaction.h"
#include "evict/merge.h"

#include <algorithm>
#include <cmath>

using namespace edgekv;

// Whether the host reads and writes a layer's rows in a copy, where it does.
bool Compaction::copies(const edgekv_layer & layer) const {
    return cache_.staging_ != Staging::automatic || !ggml_backend_buffer_is_host(layer.k->buffer);
}

// The graphs that work on a layer's rows; NULL = the host does.
RowGraphs * Compaction::graphs_of(const edgekv_layer & layer) const { return work_.graphs[layer.pool].get(); }

// The first n rows of one head, keys or values, where the host can read them.
HostRows Compaction::host_rows(uint32_t il, uint32_t g, bool values, size_t n) {
    return host_rows(layers_[il], values, cache_.head_of(il, g).first, n);
}

// Rows [first, first + n) of the pool that a layer's heads lie in.
HostRows Compaction::host_rows(const edgekv_layer & layer, bool values, size_t first, size_t n) {
    const bool of_v   = values && !layer.is_latent();
    const bool copied = copies(layer);
    if (copied && n > 0) {
        staged_[&layer - layers_.data()] = 1;
    }
    return HostRows(of_v ? layer.v : layer.k, first, n, !copied ? nullptr : of_v ? &work_.copy_v : &work_.copy_k);
}

// A layer's queries of some rows, copied once for all its heads; NULL where the host reads them where they lie.
HostRows * Compaction::copied_queries(uint32_t il, const QueryRows & rows) {
    if (!copies(layers_[il])) {
        return nullptr;
    }
    if (!queries_ || queries_layer_ != il) {
        queries_.emplace(cache_.window_->copied(il, params_.probed != 0, cache_.n_past, rows, work_.copy_queries));
        queries_layer_ = il;
    }
    return &*queries_;
}

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

// Turn the queries of one KV head in scratch.window to what they would be, on average, at the next n_ahead positions.
void Compaction::turn_ahead(uint32_t il, uint32_t n_rows, Scratch & scratch) const {
    const edgekv_layer & layer = layers_[il];
    const RopeUndo &     undo  = work_.undo[il];
    if (!undo.turns()) {
        return;
    }
    float * mean = scratch.anchor.data();
    undo.write_mean_turn(policy_.n_ahead, mean);
    for (size_t i = 0; i < size_t(layer.n_group) * n_rows; ++i) {
        float * row = scratch.window.data() + i * layer.head_dim_k;
        if (cache_.rotation_ > 0) {
            rotate_hadamard(row, layer.head_dim_k, cache_.rotation_);
        }
        undo.turn_ahead(row, cache_.n_past - scratch.positions[i % n_rows], mean);
        if (cache_.rotation_ > 0) {
            rotate_hadamard(row, layer.head_dim_k, cache_.rotation_);
        }
    }
}

// Call f(where to write what is found out about a head, what policies see of its cells).
template <typename F>
void Compaction::with_head(uint32_t il, uint32_t g, const QueryRows & rows, bool keys, bool values, Scratch & scratch, F f) {
    const edgekv_layer & layer      = layers_[il];
    const bool           scored     = scored_[layer.pool] != 0; // then only the positions of queries are missing
    const bool           copied     = values && valued_[layer.pool] == 0;
    const uint32_t       n_rows     = (keys || scored) && traits_.queries ? rows.n : 0;
    const HeadView       head       = cache_.cells(il, g);
    const HeadWork       found      = work(il, g);
    const float *        given      = is_first(rows) ? found.score : found.of_part;
    HostRows             k          = host_rows(il, g, false, keys ? head.n : 0);
    HostRows             v          = host_rows(il, g, true, copied ? head.n : 0);
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
                                              scratch.positions.data(), copied_queries(il, rows));
        queries.n_seen = scratch.positions[n_rows - 1] + 1;
    }
    if (n_rows > 0 && traits_.ahead) { // no graph scores for it, so the queries are here
        turn_ahead(il, n_rows, scratch);
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
                             valued_[layer.pool] ? found.of_value : nullptr,
                             &queries,
                             il,
                             g,
                             params_.reposition != 0 ? nullptr : head.log_count };
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
    const bool keys = traits_.keys && !scored_[layers_[il].pool];
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
    const uint32_t budget = budgets_[layers_[il].first_head + g];
    const bool     values = policy_.weigh != EDGEKV_WEIGH_NONE;
    with_head(il, g, parts_[0], false, values, scratch, [&](const HeadWork & found, const Cells & seen) {
        choose(policy_, seen, found.score, *params_.protection, budget, scratch, found.keep);
    });
    if (policy_.n_merged > 0) {
        const HeadView head  = cache_.cells(il, g);
        const HeadWork found = work(il, g);
        HostRows       k     = host_rows(il, g, false, head.n);
        group_cells({ nullptr, head.position, head.order, head.n, head.log_count }, rows_of_head(il, false, k, head.n), found.keep, scratch,
                    found.group);
    }
}

// Bytes that were copied between the host and where the rows lie.
uint64_t Compaction::crossed_bytes() const {
    uint64_t sum = work_.copy_k.n_bytes + work_.copy_v.n_bytes + work_.copy_queries.n_bytes;
    for (const auto & graphs : work_.graphs) {
        sum += graphs ? graphs->crossed_bytes : 0;
    }
    return sum;
}
