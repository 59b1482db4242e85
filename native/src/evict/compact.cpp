// One compaction: bring up to date what cells carry, score them, divide the budget, choose those that stay, and move them.
#include "abi/aborts.h"
#include "abi/status.h"
#include "cache/cache.h"
#include "evict/choose.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "score/team.h"
#include "score/wo_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

using namespace edgekv;

void edgekv_cache::check_provided(const edgekv_compaction_params & params) const {
    const edgekv_policy & policy = *params.policy;
    check(policy);
    check(*params.protection);
    require(params.budget > 0, "a budget of 0 cells keeps nothing; give at least 1");

    const bool     custom = policy.base == EDGEKV_BASE_CUSTOM;
    const uint32_t rows   = rows_read(policy, ctx->get_cparams().n_ubatch);
    const bool     probed = params.probed != 0 && rows > 0;
    const bool     fits   = (probed || rows <= params_.n_query_rows) && (!accumulates(policy) || params_.accumulates) &&
                      (!policy.critical || params_.wo_norms) &&
                      (!(reads_before_rope(policy) || looks_ahead(policy)) || params_.before_rope) &&
                      (shape.latent_dim_v == 0 || !reads_values(policy)) &&
                      (!custom || ((policy.scorer->reads | EDGEKV_READS_POSITIONS) & ~params_.custom_reads) == 0);
    if (!fits) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened without what the policy reads; see edgekv_cache_params_for");
    }
    const uint32_t ragged = raggedness(policy) | (params.budgets != nullptr ? EDGEKV_RAGGED_HEADS : 0);
    if ((ragged & ~params_.ragged) != 0) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened for heads that keep the same; see edgekv_cache_params_for");
    }
    if (params.reposition != 0 && turns_.empty()) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened for keys that keep their positions; open it with repositions");
    }
    if (probed && (!window_ || window_->n_probe() == 0)) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "there was no probe whose queries could score");
    }
}

// Rows of queries that score now. What is accumulated counts every row once.
uint32_t edgekv_cache::rows_of(const edgekv_compaction_params & params) const {
    const edgekv_policy & policy = *params.policy;
    const uint32_t        wanted = rows_read(policy, n_fresh_);
    if (wanted == 0 || !window_) {
        return 0;
    }
    if (params.probed) {
        return std::min(scores_every_row(policy) ? UINT32_MAX : wanted, window_->n_probe());
    }
    const uint32_t n_rows = std::min(wanted, window_->n_text(n_past));
    const bool counts_once = policy.base != EDGEKV_BASE_SNAPKV && carries_on(policy, params.generating != 0);
    return counts_once ? std::min(n_rows, n_fresh_) : n_rows;
}

// The rows that score, or those of each part of a probe.
void edgekv_cache::list_parts(const edgekv_compaction_params & params) {
    const uint32_t n_rows  = rows_of(params);
    const uint32_t n_parts = params.probed != 0 && n_rows > 0 ? window_->n_parts() : 0;
    parts_.assign(1, { n_rows, 0 });
    for (uint32_t i = 0; n_parts > 1 && i < n_parts; ++i) {
        const QueryRows part = window_->part(i);
        parts_.resize(i + 1);
        parts_[i] = { std::min(part.n, n_rows), part.n_after };
    }
}

// The newest tokens are the last of every head's order; where some are gone, older ones are done again.
void edgekv_cache::update_wo_norms(uint32_t il, Scratch & scratch) {
    const edgekv_layer & layer = layers_[il];
    const size_t         n_new = n_past - normed_;
    uint32_t             most  = 0;
    for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
        most = std::max(most, cells(il, g).n);
    }
    WoNorm norm(layer.is_latent() ? shape.latent_dim_v : layer.head_dim_v, layer.n_head_kv, layer.n_group, scratch, layer.is_latent());
    for (size_t first = 0; first < std::min<size_t>(n_new, most); first += WoNorm::n_at_once) {
        const size_t n = std::min(WoNorm::n_at_once, n_new - first);
        // of one head, those that it has: the i-th newest is value i - first
        const auto each = [&](const HeadCells & head, auto f) {
            for (size_t i = 0; i < n && first + i < head.n; ++i) {
                f(i, head.order[head.n - 1 - first - i]);
            }
        };
        norm.begin();
        for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
            const HeadCells head   = cells(il, g);
            HostRows        v      = host_rows(il, g, true, head.n);
            const Rows      values = rows_of_head(il, true, v, head.n);
            each(head, [&](size_t i, uint32_t cell) { norm.put(g, i, values, cell); });
        }
        if (layer.is_latent()) {
            layer.w_v.each_slice(WoNorm::n_slice, scratch.wo_bytes, [&](size_t at, const Rows & rows) { norm.decompress(rows, at, n); });
        }
        for (size_t reader = 0; reader < layer.readers.size(); ++reader) {
            layer.projections[reader].each_slice(WoNorm::n_slice, scratch.wo_bytes, [&](size_t, const Rows & rows) {
                norm.add(rows, 0, layer.readers[reader].n_group, n);
            });
        }
        for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
            float norms[WoNorm::n_at_once];
            norm.take(g, n, norms);
            const HeadCells head = cells(il, g);
            each(head, [&](size_t i, uint32_t cell) { head.wo_norm[cell] = norms[i]; });
        }
    }
}

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
    const uint32_t       n_rows     = (keys || scored) && reads_queries(*params.policy) ? rows.n : 0;
    const HeadCells      head       = cells(il, g);
    HostRows             k          = host_rows(il, g, false, keys ? head.n : 0);
    HostRows             v          = host_rows(il, g, true, values ? head.n : 0);
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
    if (n_rows > 0 && looks_ahead(*params.policy)) { // no graph scores for it, so the queries are here
        turn_ahead(il, n_rows, params.policy->n_ahead, scratch);
    }
    const bool  has_past = carries_on(*params.policy, params.generating != 0);
    const bool  undone   = keys && reads_before_rope(*params.policy);
    const Cells seen     = { undone ? keys_before_rope(il, k, head) : rows_of_head(il, false, k, head.n),
                             &value_rows,
                             head.position,
                             head.order,
                             has_past ? head.accumulated : nullptr,
                             head.wo_norm,
                             scored ? head.score : params.policy->base == EDGEKV_BASE_CUSTOM ? custom_.by_cell_of(g) : nullptr,
                             &queries,
                             il,
                             g };
    f(head, seen);
}

// Have graphs score what they can, so that only scores come here.
void edgekv_cache::score_by_graphs(const edgekv_compaction_params & params) {
    std::fill(scored_.begin(), scored_.end(), uint8_t(0));
    const bool none = std::all_of(graphs_.begin(), graphs_.end(), [](const auto & graphs) { return !graphs; });
    if (none || parts_.size() > 1 || !has_graph(*params.policy)) { // no graph knows parts
        return;
    }
    GraphQueries queries = { params.probed != 0, softcap_, {}, {} };
    if (reads_queries(*params.policy)) {
        window_->each_row(params.probed != 0, n_past, parts_[0], n_past - rope_past,
                          [&](uint32_t, uint32_t row, int32_t, int32_t delta) {
                              queries.rows.push_back(static_cast<int32_t>(row));
                              queries.deltas.push_back(delta);
                          });
    }
    for (size_t p = 0; p < graphs_.size(); ++p) {
        const bool sinks = reads_queries(*params.policy) && std::any_of(layers_.begin(), layers_.end(), [&](const edgekv_layer & layer) {
            return layer.pool == p && !layer.sinks.empty(); // no graph knows learnt ones
        });
        float *    scores = cells_.at(flat_.pools()[p].offset, 0).score;
        if (!params.probed && !queries.rows.empty()) { // how many of these come before each cell
            const auto n_older = n_past - static_cast<int32_t>(queries.rows.size());
            for (uint32_t il = 0; il < layers_.size(); ++il) {
                for (uint32_t g = 0; layers_[il].pool == p && g < layers_[il].n_head_kv; ++g) {
                    const HeadCells head = cells(il, g);
                    std::transform(head.position, head.position + head.n, head.score,
                                   [&](int32_t position) { return static_cast<float>(position - n_older); });
                }
            }
        }
        scored_[p]        = graphs_[p] && !sinks && graphs_[p]->score(*params.policy, n_filled_, queries, scores);
    }
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
    const bool            keys   = reads_keys(policy) && !scored_[layers_[il].pool];
    with_head(il, g, params, rows, keys, reads_values(policy), scratch, [&](const HeadCells & head, const Cells & seen) {
        const bool first  = &rows == parts_.data();
        float *    scores = first ? head.score : scratch.scores.data();
        float *    next   = !accumulates(policy) ? nullptr : first ? head.next : scratch.norms.data();
        score_base(policy, seen, layer_budgets_[il], scratch, scores, next);
        if (!first) {
            take_larger(head.score, scores, head.n);
        }
        if (!first && next != nullptr) {
            take_larger(head.next, next, head.n);
        }
        if (policy.spread != EDGEKV_SPREAD_HEAD && policy.softmax) {
            std::copy_n(head.score, head.n, head.share);
            normalise(policy, seen, head.share);
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

void edgekv_cache::begin_crossing() {
    std::fill(staged_.begin(), staged_.end(), uint8_t(0));
    copy_k_.n_bytes = copy_v_.n_bytes = query_bytes_ = 0;
    for (const auto & graphs : graphs_) {
        if (graphs) {
            graphs->crossed_bytes = 0;
        }
    }
}

void edgekv_cache::count_crossing(edgekv_compaction & result) const {
    result.n_staged      = static_cast<uint32_t>(std::count(staged_.begin(), staged_.end(), 1));
    result.crossed_bytes = copy_k_.n_bytes + copy_v_.n_bytes + query_bytes_;
    for (const auto & graphs : graphs_) {
        result.crossed_bytes += graphs ? graphs->crossed_bytes : 0;
    }
}

void edgekv_cache::compact(const edgekv_compaction_params & given, edgekv_compaction & result) {
    drop_draft();
    check_provided(given);
    edgekv_policy policy = *given.policy;
    policy.carry         = policy.carry > 0.0 ? std::pow(policy.carry, double(n_fresh_) / given.budget) : 0.0;
    if (given.budgets != nullptr) {
        policy.spread = EDGEKV_SPREAD_HEAD; // nothing is left to share
    }

    edgekv_compaction_params params = given;
    params.policy                   = &policy;

    result = {};
    if (layers_.empty()) {
        n_fresh_ = 0;
        return;
    }
    divide_layers(params);
    const bool full = is_full(policy);
    if (n_past == 0 || (!full && !scores_every_row(policy) && !(accumulates(policy) && params.probed))) {
        return;
    }
    llama_synchronize(ctx);
    begin_crossing();
    const int64_t start_us  = ggml_time_us();
    Team          team(scratch_.size());
    const auto    on_layers = [&](auto work) {
        team.each(layers_.size(), [&](size_t il, size_t thread) { work(static_cast<uint32_t>(il), scratch_[thread]); });
    };
    const auto on_heads = [&](auto work) {
        team.each(flat_.n_heads(), [&](size_t head, size_t thread) {
            const auto after = std::upper_bound(layers_.begin(), layers_.end(), head,
                                                [](size_t h, const edgekv_layer & layer) { return h < layer.first_head; });
            const auto layer = after - 1;
            work(static_cast<uint32_t>(layer - layers_.begin()), static_cast<uint32_t>(head - layer->first_head), scratch_[thread]);
        });
    };
    list_parts(params);
    score_by_graphs(params);
    if (policy.base == EDGEKV_BASE_CUSTOM) { // a layer's heads are scored by one call, which the loop over its heads needs
        on_layers([&](uint32_t il, Scratch & scratch) {
            for (const QueryRows & rows : parts_) {
                score_custom(il, params, rows);
                for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
                    score(il, g, params, rows, scratch);
                }
            }
        });
    } else {
        on_heads([&](uint32_t il, uint32_t g, Scratch & scratch) {
            for (const QueryRows & rows : parts_) {
                score(il, g, params, rows, scratch);
            }
        });
    }
    std::vector<Move> moves;
    if (full) {
        share_out(params);
        if (policy.critical) {
            on_layers([&](uint32_t il, Scratch & scratch) { update_wo_norms(il, scratch); });
        }
        on_heads([&](uint32_t il, uint32_t g, Scratch & scratch) { choose(il, g, params, scratch); });
        moves = heads_to_move();
    }
    const int64_t chosen_us = ggml_time_us();

    // from here on nothing fails but a device, and nothing is allocated
    const Computing computing;
    n_fresh_ = 0;
    if (accumulates(policy)) {
        cells_.carry_on();
    }
    result.score_us = chosen_us - start_us;
    if (!full) {
        count_crossing(result);
        return;
    }
    normed_ = policy.critical ? n_past : normed_;
    result.n_evicted = flat_.n_kept() + uint64_t(flat_.n_heads()) * n_filled_ -
                       std::accumulate(budgets_.begin(), budgets_.end(), uint64_t(0));
    const auto end = static_cast<int32_t>(*std::max_element(budgets_.begin(), budgets_.end()));
    try {
        on_layers([&](uint32_t il, Scratch & scratch) {
            close_gaps(il, scratch);
            if (params.reposition != 0) {
                reposition(il, end);
            }
        });
        finish_graphs();
        rope_past = params.reposition != 0 ? end : rope_past;
        move_heads(moves, team);
    } catch (...) { // a device failed, and rows are lost
        clear();
        throw;
    }
    result.move_us = ggml_time_us() - chosen_us;
    count_crossing(result);
}
