// What policies see of a head, by which its cells are scored, and those that stay are marked.
#include "cache/cache.h"
#include "evict/choose.h"

#include <algorithm>
#include <cmath>

using namespace edgekv;

// Whether the host reads and writes a layer's rows in a copy, where it does.
bool edgekv_cache::copies(const edgekv_layer & layer) const {
    return params_.staged != EDGEKV_STAGING_AUTO || !ggml_backend_buffer_is_host(layer.k->buffer);
}

// The graphs that work on a layer's rows; NULL = the host does.
RowGraphs * edgekv_cache::graphs_of(const edgekv_layer & layer) const { return graphs_[layer.pool].get(); }

// Those that move them; NULL likewise.
RowGraphs * edgekv_cache::moving_graphs(const edgekv_layer & layer) const {
    RowGraphs * graphs = graphs_of(layer);
    return graphs != nullptr && graphs->moves() ? graphs : nullptr;
}

void edgekv_cache::finish_graphs() {
    for (const auto & graphs : graphs_) {
        if (graphs) {
            graphs->finish();
        }
    }
}

// The first n rows of one head, keys or values, where the host can read them.
HostRows edgekv_cache::host_rows(uint32_t il, uint32_t g, bool values, size_t n) {
    return host_rows(layers_[il], values, head_of(il, g).first, n);
}

// Rows [first, first + n) of the pool that a layer's heads lie in.
HostRows edgekv_cache::host_rows(const edgekv_layer & layer, bool values, size_t first, size_t n) {
    const bool of_v   = values && !layer.is_latent();
    const bool copied = copies(layer);
    if (copied && n > 0) {
        staged_[&layer - layers_.data()] = 1;
    }
    return HostRows(of_v ? layer.v : layer.k, first, n, !copied ? nullptr : of_v ? &copy_v_ : &copy_k_);
}

Rows edgekv_cache::rows_of_head(uint32_t il, bool values, HostRows & host, size_t n) const {
    const edgekv_layer & layer = layers_[il];
    const uint32_t       dim   = values ? layer.head_dim_v : layer.head_dim_k;
    return Rows({ host.row(0), (values ? layer.v : layer.k)->type, dim, n, host.stride(), values ? value_rotation_ : rotation_, 0 });
}

// The keys of a head as they were before RoPE, which turned them by the positions that they have there now.
Rows edgekv_cache::keys_before_rope(uint32_t il, HostRows & host, const HeadCells & head) const {
    const edgekv_layer & layer = layers_[il];
    const int32_t *      at    = head.rope_position != nullptr ? head.rope_position : head.position;
    return Rows({ host.row(0), layer.k->type, layer.head_dim_k, head.n, host.stride(), rotation_, 0 },
                undo_[il].turns() ? &undo_[il] : nullptr, at);
}

// Turn the queries of one KV head in scratch.window to what they would be, on average, at the next n_ahead positions.
void edgekv_cache::turn_ahead(uint32_t il, uint32_t n_rows, uint32_t n_ahead, Scratch & scratch) const {
    const edgekv_layer & layer = layers_[il];
    const RopeUndo &     undo  = undo_[il];
    if (!undo.turns()) {
        return;
    }
    float * mean = scratch.anchor.data();
    undo.write_mean_turn(n_ahead, mean);
    for (size_t i = 0; i < size_t(layer.n_group) * n_rows; ++i) {
        float * row = scratch.window.data() + i * layer.head_dim_k;
        if (rotation_ > 0) {
            rotate_hadamard(row, layer.head_dim_k, rotation_);
        }
        undo.turn_ahead(row, n_past - scratch.positions[i % n_rows], mean);
        if (rotation_ > 0) {
            rotate_hadamard(row, layer.head_dim_k, rotation_);
        }
    }
}

// Call f(the cells of a head, what policies see of them).
template <typename F>
void edgekv_cache::with_head(uint32_t il, uint32_t g, const edgekv_compaction_params & params, const QueryRows & rows, bool keys,
                             bool values, Scratch & scratch, F f) {
    const edgekv_layer & layer      = layers_[il];
    const bool           scored     = scored_[layer.pool] != 0; // then only the positions of queries are missing
    const bool           copied     = values && valued_[layer.pool] == 0;
    const uint32_t       n_rows     = (keys || scored) && traits_of(*params.policy).queries ? rows.n : 0;
    const HeadCells      head       = cells(il, g);
    HostRows             k          = host_rows(il, g, false, keys ? head.n : 0);
    HostRows             v          = host_rows(il, g, true, copied ? head.n : 0);
    const Rows           value_rows = rows_of_head(il, true, v, head.n);

    edgekv_queries queries = { scratch.window.data(), scratch.positions.data(), layer.n_group, n_rows, layer.head_dim_k, 0, 1.0f,
                               softcap_, layer.sinks.empty() ? nullptr : &layer.sinks[g * layer.n_group] };
    if (n_rows > 0 && scored) {
        window_->each_row(params.probed != 0, n_past, rows, n_past - rope_past,
                          [&](uint32_t w, uint32_t, int32_t position, int32_t) { scratch.positions[w] = position; });
        queries.n_seen = scratch.positions[n_rows - 1] + 1;
    } else if (n_rows > 0) {
        const std::lock_guard<std::mutex> lock(turning_); // heads of a layer share what turns their queries
        query_bytes_ += copies(layer) ? sizeof(float) * n_rows * layer.n_group * layer.head_dim_k : 0;
        queries.scale  = window_->read(il, g * layer.n_group, layer.n_group, params.probed != 0, n_past, rows, true,
                                       n_past - rope_past, turn_of(il), scratch.window.data(), scratch.positions.data());
        queries.n_seen = scratch.positions[n_rows - 1] + 1;
    }
    if (n_rows > 0 && traits_of(*params.policy).ahead) { // no graph scores for it, so the queries are here
        turn_ahead(il, n_rows, params.policy->n_ahead, scratch);
    }
    const bool  has_past = traits_of(*params.policy).carries_on(params.generating != 0);
    const bool  undone   = keys && traits_of(*params.policy).before_rope;
    const Cells seen     = { undone ? keys_before_rope(il, k, head) : rows_of_head(il, false, k, head.n),
                             &value_rows,
                             head.position,
                             head.order,
                             has_past ? head.accumulated : nullptr,
                             head.wo_norm,
                             scored ? head.score : params.policy->base == EDGEKV_BASE_CUSTOM ? custom_.by_cell_of(g) : nullptr,
                             valued_[layer.pool] ? head.of_value : nullptr,
                             &queries,
                             il,
                             g };
    f(head, seen);
}

// The larger of each two of n scores, in place; one that is NaN stays.
static void take_larger(float * scores, const float * others, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        scores[i] = scores[i] >= others[i] || std::isnan(scores[i]) ? scores[i] : others[i];
    }
}

// Score every cell of a head by some rows. Of the parts of a probe, the first comes first, and a cell has the largest score.
void edgekv_cache::score(uint32_t il, uint32_t g, const edgekv_compaction_params & params, const QueryRows & rows,
                         Scratch & scratch) {
    const edgekv_policy & policy = *params.policy;
    const bool            keys   = traits_of(policy).keys && !scored_[layers_[il].pool];
    with_head(il, g, params, rows, keys, traits_of(policy).value_prior, scratch, [&](const HeadCells & head, const Cells & seen) {
        const bool first  = &rows == parts_.data();
        float *    scores = first ? head.score : scratch.scores.data();
        float *    next   = !traits_of(policy).accumulates ? nullptr : first ? head.next : scratch.norms.data();
        score_base(policy, seen, layer_budgets_[il], scratch, scores, next);
        if (!first) {
            take_larger(head.score, scores, head.n);
        }
        if (!first && next != nullptr) {
            take_larger(head.next, next, head.n);
        }
        if (policy.spread != EDGEKV_SPREAD_HEAD && policy.softmax) {
            std::copy_n(head.score, head.n, head.softmax);
            normalise(policy, head.n, head.softmax);
        }
    });
}

// Mark the cells of a head that stay. Nothing moves yet.
void edgekv_cache::choose(uint32_t il, uint32_t g, const edgekv_compaction_params & params, Scratch & scratch) {
    const edgekv_policy & policy = *params.policy;
    const uint32_t        budget = budgets_[layers_[il].first_head + g];
    const bool            values = policy.weigh != EDGEKV_WEIGH_NONE;
    with_head(il, g, params, parts_[0], false, values, scratch, [&](const HeadCells & head, const Cells & seen) {
        edgekv::choose(policy, seen, head.score, *params.protection, budget, scratch, head.keep);
    });
}
