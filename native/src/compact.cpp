// One compaction: bring up to date what cells carry, choose, move.
#include "cache.h"
#include "choose.h"
#include "host_rows.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "parallel.h"
#include "select.h"
#include "status.h"
#include "wo_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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
                      (!custom || ((policy.scorer->reads | EDGEKV_READS_POSITIONS) & ~params_.custom_reads) == 0);
    if (!fits) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened without what the policy reads; see edgekv_cache_params_for");
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

// The newest tokens are the last of every head's order; where some are gone, older ones are done again.
void edgekv_cache::update_wo_norms(edgekv_layer & layer, Scratch & scratch) {
    const size_t n_new     = std::min<size_t>(n_past - normed_, n_used);
    const size_t n_columns = layer.w_o->ne[0];
    const size_t n_outputs = layer.w_o->ne[1];
    const bool   host      = ggml_backend_buffer_is_host(layer.w_o->buffer);
    HostRows     v(layer.v, n_used, shape.staged, copy_v_);

    std::vector<char> slice(host ? 0 : WoNorm::n_slice * layer.w_o->nb[1]);
    std::vector<Rows> values;
    for (uint32_t g = 0; g < layer.heads.size(); ++g) {
        values.push_back(rows_of_head(layer, g, true, v));
    }
    WoNorm norm(n_columns, layer.head_dim_v, layer.heads.size(), layer.n_group, 0, scratch);
    for (size_t first = 0; first < n_new; first += WoNorm::n_at_once) {
        const size_t n     = std::min(WoNorm::n_at_once, n_new - first);
        const size_t begin = n_used - n_new + first;
        norm.begin();
        for (size_t g = 0; g < layer.heads.size(); ++g) {
            for (size_t i = 0; i < n; ++i) {
                norm.put(g, i, values[g], layer.heads[g].order[begin + i]);
            }
        }
        for (size_t e = 0; e < n_outputs; e += WoNorm::n_slice) {
            const size_t n_rows = std::min(WoNorm::n_slice, n_outputs - e);
            const char * data   = static_cast<const char *>(layer.w_o->data) + e * layer.w_o->nb[1];
            if (!host) {
                ggml_backend_tensor_get(layer.w_o, slice.data(), e * layer.w_o->nb[1], n_rows * layer.w_o->nb[1]);
                data = slice.data();
            }
            const Rows outputs({ data, layer.w_o->type, static_cast<uint32_t>(n_columns), n_rows, layer.w_o->nb[1], 0, 0 });
            for (size_t k = 0; k < n_rows; ++k) {
                outputs.read(k, norm.slice_row(k));
            }
            norm.add_slice(n_rows, n);
        }
        for (size_t g = 0; g < layer.heads.size(); ++g) {
            float norms[WoNorm::n_at_once];
            norm.take(g, n, norms);
            for (size_t i = 0; i < n; ++i) {
                layer.heads[g].wo_norm[layer.heads[g].order[begin + i]] = norms[i];
            }
        }
    }
}

// The keys or values of one head as they are stored.
Rows edgekv_cache::rows_of_head(const edgekv_layer & layer, uint32_t g, bool values, HostRows & host) const {
    const ggml_tensor * tensor = values ? layer.v : layer.k;
    const uint32_t      dim    = values ? layer.head_dim_v : layer.head_dim_k;
    return Rows({ host.row(0) + g * ggml_row_size(tensor->type, dim), tensor->type, dim, n_used, host.stride(),
                  values ? value_rotation(dim) : rotation_, 0 });
}

// Let the host's scorer score one layer; its arrays hold the cells ascending by position.
void edgekv_cache::score_custom(const edgekv_layer & layer, uint32_t index, const edgekv_compaction_params & params, HostRows & k,
                                HostRows & v) {
    const edgekv_scorer & scorer = *params.policy->scorer;

    edgekv_layer_view view = {};
    view.layer             = index;
    view.n_head_kv         = static_cast<uint32_t>(layer.heads.size());
    view.n_head            = layer.n_group * view.n_head_kv;
    view.n                 = n_used;
    view.head_dim_k        = layer.head_dim_k;
    view.head_dim_v        = layer.head_dim_v;
    view.positions         = custom_.positions.data();
    for (const bool values : { false, true }) {
        if (!(scorer.reads & (values ? EDGEKV_READS_VALUES : EDGEKV_READS_KEYS))) {
            continue;
        }
        float * dst                        = values ? custom_.values.data() : custom_.keys.data();
        (values ? view.values : view.keys) = dst;
        for (uint32_t g = 0; g < view.n_head_kv; ++g) {
            const Rows rows = rows_of_head(layer, g, values, values ? v : k);
            for (const uint32_t cell : layer.heads[g].order) {
                rows.read(cell, dst);
                if (rows.rotation() > 0) {
                    rotate_hadamard(dst, rows.dim(), rows.rotation());
                }
                dst += rows.dim();
            }
        }
    }
    if (scorer.reads & EDGEKV_READS_QUERIES) {
        view.n_rows  = rows_of(params);
        view.queries = custom_.queries.data();

        view.query_positions = custom_.rows.data();
        if (view.n_rows > 0) {
            window_->read(index, 0, view.n_head, params.probed != 0, n_past, view.n_rows, true, custom_.queries.data(),
                          custom_.rows.data());
        }
        if (rotation_ > 0) {
            for (uint32_t i = 0; i < view.n_head * view.n_rows; ++i) {
                rotate_hadamard(custom_.queries.data() + size_t(i) * layer.head_dim_k, layer.head_dim_k, rotation_);
            }
        }
    }
    int32_t * position = custom_.positions.data();
    for (const edgekv_head & head : layer.heads) {
        position = std::transform(head.order.begin(), head.order.end(), position, [&](uint32_t cell) { return head.position[cell]; });
    }
    if (scorer.score(scorer.user_data, &view, custom_.scores.data()) != 0) {
        throw Error(EDGEKV_STATUS_INTERNAL, "the scorer failed");
    }
    for (uint32_t g = 0; g < view.n_head_kv; ++g) {
        for (uint32_t i = 0; i < n_used; ++i) {
            custom_.by_cell[size_t(g) * n_used + layer.heads[g].order[i]] = custom_.scores[size_t(g) * n_used + i];
        }
    }
}

// Score one layer's cells, and choose those that stay. Nothing moves yet.
void edgekv_cache::choose(edgekv_layer & layer, uint32_t index, const edgekv_compaction_params & params, Scratch & scratch) {
    const edgekv_policy & policy = *params.policy;
    const bool            full   = n_used > params.budget;
    const bool            custom = policy.base == EDGEKV_BASE_CUSTOM;
    if (policy.critical && full) {
        update_wo_norms(layer, scratch);
    }
    const bool has_values = reads_values(policy) || (custom && policy.scorer->reads & EDGEKV_READS_VALUES);
    HostRows   k(layer.k, n_used, shape.staged, copy_k_);
    HostRows   v(layer.v, has_values ? n_used : 0, shape.staged, copy_v_);
    if (custom) {
        score_custom(layer, index, params, k, v);
    }
    const bool     has_past = carries_on(policy, params.generating != 0);
    const uint32_t n_rows   = reads_queries(policy) ? rows_of(params) : 0;
    for (uint32_t g = 0; g < layer.heads.size(); ++g) {
        edgekv_head & head   = layer.heads[g];
        const Rows    keys   = rows_of_head(layer, g, false, k);
        const Rows    values = rows_of_head(layer, g, true, v);

        edgekv_queries queries = { scratch.window.data(), scratch.positions.data(), layer.n_group, n_rows, layer.head_dim_k, 0, 1.0f,
                                   softcap_ };
        if (n_rows > 0) {
            queries.scale  = window_->read(index, g * layer.n_group, layer.n_group, params.probed != 0, n_past, n_rows, true,
                                           scratch.window.data(), scratch.positions.data());
            queries.n_seen = scratch.positions[n_rows - 1] + 1;
        }
        float *     next  = accumulates(policy) ? head.next.data() : nullptr;
        const Cells cells = { keys,
                              &values,
                              head.position.data(),
                              head.order.data(),
                              has_past ? head.accumulated.data() : nullptr,
                              head.wo_norm.data(),
                              custom_.by_cell.data() + size_t(g) * n_used,
                              &queries,
                              index,
                              g };
        if (full) {
            edgekv::choose(policy, cells, *params.protection, params.budget, scratch, next, head.keep.data());
        } else {
            score_base(policy, cells, params.budget, scratch, scratch.scores.data(), next);
        }
    }
}

// Fill the holes below the budget with the survivors above it: no other row moves. On the way a filled hole is
// marked 2 and the position of the cell it took over leads to it, so that `order` can be renamed in one pass.
void edgekv_cache::move(edgekv_layer & layer, uint32_t budget) {
    HostRows     k(layer.k, n_used, shape.staged, copy_k_);
    HostRows     v(layer.v, n_used, shape.staged, copy_v_);
    const size_t k_bytes = ggml_row_size(layer.k->type, layer.head_dim_k);
    const size_t v_bytes = ggml_row_size(layer.v->type, layer.head_dim_v);
    for (uint32_t g = 0; g < layer.heads.size(); ++g) {
        edgekv_head & head = layer.heads[g];

        uint32_t hole = 0;
        for (uint32_t cell = budget; cell < n_used; ++cell) {
            if (!head.keep[cell]) {
                continue;
            }
            while (head.keep[hole]) {
                ++hole;
            }
            std::memcpy(k.row(hole) + g * k_bytes, k.row(cell) + g * k_bytes, k_bytes);
            std::memcpy(v.row(hole) + g * v_bytes, v.row(cell) + g * v_bytes, v_bytes);
            for (auto * carried : { &head.accumulated, &head.wo_norm }) {
                if (!carried->empty()) {
                    (*carried)[hole] = (*carried)[cell];
                }
            }
            head.position[hole] = head.position[cell];
            head.keep[hole]     = 2;
            head.position[cell] = static_cast<int32_t>(hole);
        }

        size_t n_kept = 0;
        for (const uint32_t cell : head.order) {
            if (cell >= budget ? head.keep[cell] != 0 : head.keep[cell] == 1) {
                head.order[n_kept++] = cell >= budget ? static_cast<uint32_t>(head.position[cell]) : cell;
            }
        }
        head.order.resize(n_kept);
    }
    k.commit(budget);
    v.commit(budget);
}

void edgekv_cache::compact(const edgekv_compaction_params & given, edgekv_compaction & result) {
    check_provided(given);
    edgekv_policy policy = *given.policy;
    policy.carry         = policy.carry > 0.0 ? std::pow(policy.carry, double(n_fresh_) / given.budget) : 0.0;

    edgekv_compaction_params params = given;
    params.policy                   = &policy;

    result          = {};
    const bool full = n_used > params.budget;
    if (n_used == 0 || (!full && !scores_every_row(policy) && !(accumulates(policy) && params.probed))) {
        return;
    }
    llama_synchronize(ctx);
    const int64_t start_us = ggml_time_us();
    parallel_for(layers_.size(), scratch_.size(), [&](size_t il, size_t thread) {
        choose(layers_[il], static_cast<uint32_t>(il), params, scratch_[thread]);
    });
    const int64_t chosen_us = ggml_time_us();

    // from here on nothing fails
    n_fresh_ = 0;
    if (accumulates(policy)) {
        for (auto & layer : layers_) {
            for (auto & head : layer.heads) {
                head.accumulated.swap(head.next);
            }
        }
    }
    result.score_us = chosen_us - start_us;
    if (!full) {
        return;
    }
    normed_ = policy.critical ? n_past : normed_;
    parallel_for(layers_.size(), scratch_.size(), [&](size_t il, size_t /*thread*/) { move(layers_[il], params.budget); });
    kv.keep_first(params.budget, n_past - 1);

    result.n_evicted = uint64_t(n_used - params.budget) * shape.n_head_total;
    result.move_us   = ggml_time_us() - chosen_us;
    n_used           = params.budget;
}
