// One compaction: bring up to date what cells carry, score them, divide the budget, choose those that stay, and move them.
#include "cache/cache.h"
#include "evict/select.h"
#include "evict/team.h"
#include "hooks/aborts.h"
#include "hooks/status.h"
#include "llama-context.h"

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
    const uint32_t rows   = traits_of(policy).rows_read(ctx->get_cparams().n_ubatch);
    const bool     probed = params.probed != 0 && rows > 0;
    const bool     fits   = (probed || rows <= params_.n_query_rows) && (!traits_of(policy).accumulates || params_.accumulates) &&
                      (!policy.critical || params_.wo_norms) &&
                      (!(traits_of(policy).before_rope || traits_of(policy).ahead) || params_.before_rope) &&
                      (shape.latent_dim_v == 0 || !traits_of(policy).values) &&
                      (!custom || ((policy.scorer->reads | EDGEKV_READS_POSITIONS) & ~params_.custom_reads) == 0);
    if (!fits) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened without what the policy reads; see edgekv_cache_params_for");
    }
    const uint32_t ragged = traits_of(policy).ragged | (params.budgets != nullptr ? EDGEKV_RAGGED_HEADS : 0);
    if ((ragged & ~params_.ragged) != 0) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened for heads that keep the same, or share less; see "
                                                 "edgekv_cache_params_for");
    }
    if (params.reposition != 0 && turns_.empty()) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened for keys that keep their positions; open it with repositions");
    }
    const uint32_t n_fed = n_fresh_ - std::min(n_fresh_, n_missed_);
    if (traits_of(policy).every_row && !params.probed && n_fed > params_.n_query_rows) {
        fail(EDGEKV_STATUS_INVALID_STATE, "the policy scores by every token fed since the last compaction, but these are %u, and the "
             "cache keeps the queries of %u; compact after so many, or open it with n_query_rows = %u", n_fed, params_.n_query_rows, n_fed);
    }
    if (probed && (!window_ || window_->n_probe() == 0)) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "there was no probe whose queries could score");
    }
}

// Rows of queries that score now. What is accumulated counts every row once.
uint32_t edgekv_cache::rows_of(const edgekv_compaction_params & params) const {
    const edgekv_policy & policy = *params.policy;
    const uint32_t        wanted = traits_of(policy).rows_read(n_fresh_);
    if (wanted == 0 || !window_) {
        return 0;
    }
    if (params.probed) {
        return std::min(traits_of(policy).every_row ? UINT32_MAX : wanted, window_->n_probe());
    }
    const uint32_t n_rows = std::min(wanted, window_->n_text(n_past));
    const bool counts_once = policy.base != EDGEKV_BASE_SNAPKV && traits_of(policy).carries_on(params.generating != 0);
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
    n_drafted_ = 0;
    check_provided(given);
    edgekv_policy policy = *given.policy;
    policy.carry         = policy.carry > 0.0 ? std::pow(policy.carry, double(n_fresh_) / given.budget) : 0.0;

    edgekv_compaction_params params = given;
    params.policy                   = &policy;

    result = {};
    if (layers_.empty()) {
        n_fresh_ = n_missed_ = 0;
        return;
    }
    std::vector<uint32_t> by_shares;
    if (policy.spread == EDGEKV_SPREAD_GIVEN && params.budgets == nullptr) {
        by_shares      = divide_by_shares(params);
        params.budgets = by_shares.data();
    }
    if (params.budgets != nullptr) {
        policy.spread = EDGEKV_SPREAD_HEAD; // nothing is left to share
    }
    divide_layers(params);
    const bool full = is_full(policy);
    if (n_past == 0 || (!full && !traits_of(policy).every_row && !(traits_of(policy).accumulates && params.probed))) {
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
    square_by_graphs(policy);
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
        measure_by_graphs(policy, scratch_.front());
        on_heads([&](uint32_t il, uint32_t g, Scratch & scratch) { choose(il, g, params, scratch); });
        moves = heads_to_move();
    }
    const int64_t chosen_us = ggml_time_us();

    // from here on nothing fails but a device, and nothing is allocated
    const Computing computing;
    n_fresh_ = n_missed_ = 0;
    if (traits_of(policy).accumulates) {
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
