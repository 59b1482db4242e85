// How a compaction goes: bring up to date what cells carry, score them, divide the budget, choose those that stay; then move them.
#include "evict/compaction.h"
#include "evict/select.h"
#include "hooks/aborts.h"
#include "hooks/status.h"
#include "llama-context.h"

#include <algorithm>
#include <numeric>

namespace edgekv {

void Compaction::check_provided() const {
    require(params_.budget > 0, "a budget of 0 cells keeps nothing; give at least 1");

    if (flat_.n_allowed() < std::min(params_.budget, flat_.n_cells())) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "a budget of %u cells, but edgekv_cache_allow was called with %u; give fewer, or allow more",
             params_.budget, flat_.n_allowed());
    }
    const bool     custom = policy_.base == EDGEKV_BASE_CUSTOM;
    const uint32_t rows   = traits_.rows_read(cache_.ctx->get_cparams().n_ubatch);
    const bool     probed = params_.probed != 0 && rows > 0;
    const bool     fits   = (probed || rows <= cache_.params_.n_query_rows) && (!traits_.accumulates || cache_.params_.accumulates) &&
                      (!policy_.critical || cache_.params_.wo_norms) &&
                      (!traits_.before_rope || cache_.params_.before_rope) &&
                      (cache_.shape.latent_dim_v == 0 || !traits_.values) &&
                      (!custom || ((policy_.scorer->reads | EDGEKV_READS_POSITIONS) & ~cache_.params_.custom_reads) == 0);
    if (!fits) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened without what the policy reads; see edgekv_cache_params_for");
    }
    const uint32_t ragged = traits_.ragged | (params_.budgets != nullptr ? EDGEKV_RAGGED_HEADS : 0);
    if ((ragged & ~cache_.params_.ragged) != 0) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened for heads that keep the same, or share less; see "
                                                 "edgekv_cache_params_for");
    }
    if (params_.reposition != 0 && work_.turns.empty()) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the cache was opened for keys that keep their positions; open it with repositions");
    }
    const uint32_t n_fed = cache_.n_fresh_ - std::min(cache_.n_fresh_, cache_.n_missed_);
    if (traits_.every_row && !params_.probed && n_fed > cache_.params_.n_query_rows) {
        fail(EDGEKV_STATUS_INVALID_STATE, "the policy scores by every token fed since the last compaction, but these are %u, and the "
             "cache keeps the queries of %u; compact after so many, or open it with n_query_rows = %u", n_fed,
             cache_.params_.n_query_rows, n_fed);
    }
    if (probed && (!cache_.window_ || cache_.window_->n_probe() == 0)) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "there was no probe whose queries could score");
    }
}

// Rows of queries that score now. What is accumulated counts every row once.
uint32_t Compaction::rows_of() const {
    const uint32_t wanted = traits_.rows_read(cache_.n_fresh_);
    if (wanted == 0 || !cache_.window_) {
        return 0;
    }
    if (params_.probed) {
        return std::min(traits_.every_row ? UINT32_MAX : wanted, cache_.window_->n_probe());
    }
    const uint32_t n_rows = std::min(wanted, cache_.window_->n_text(cache_.n_past));
    return traits_.carries_on(params_.generating != 0) ? std::min(n_rows, cache_.n_fresh_) : n_rows;
}

// The rows that score, or those of each part of a probe.
void Compaction::list_parts() {
    const uint32_t n_rows  = rows_of();
    const uint32_t n_parts = params_.probed != 0 && n_rows > 0 ? cache_.window_->n_parts() : 0;
    parts_.assign(1, { n_rows, 0 });
    for (uint32_t i = 0; n_parts > 1 && i < n_parts; ++i) {
        const QueryRows part = cache_.window_->part(i);
        parts_.resize(i + 1);
        parts_[i] = { std::min(part.n, n_rows), part.n_after };
    }
}

// Call work(layer, scratch) for every layer, on the threads of the team.
template <typename Work> void Compaction::on_layers(Work work) {
    team_->each(layers_.size(), [&](size_t il, size_t thread) { work(static_cast<uint32_t>(il), work_.scratch[thread]); });
}

// Call work(layer, head, scratch) for every head likewise.
template <typename Work> void Compaction::on_heads(Work work) {
    team_->each(flat_.n_heads(), [&](size_t head, size_t thread) {
        const auto after = std::upper_bound(layers_.begin(), layers_.end(), head,
                                            [](size_t h, const edgekv_layer & layer) { return h < layer.first_head; });
        const auto layer = after - 1;
        work(static_cast<uint32_t>(layer - layers_.begin()), static_cast<uint32_t>(head - layer->first_head), work_.scratch[thread]);
    });
}

Compaction::Compaction(const edgekv_cache & cache, const edgekv_compaction_params & params) :
    cache_(cache), layers_(cache.layers_), flat_(cache.flat_), work_(cache.workspace()), policy_(*params.policy), params_(params),
    layer_budgets_(cache.shape.n_layer), budgets_(cache.shape.n_head_total), staying_(cache.shape.n_head_total),
    devices_(cache, policy_, traits_, params.probed != 0) {
    check(policy_);
    check(*params_.protection);
    traits_ = traits_of(policy_);
    check_provided();
    if (layers_.empty()) {
        outcome_ = Outcome::counted;
        return;
    }
    if (params_.budgets != nullptr) {
        policy_.spread = EDGEKV_SPREAD_HEAD; // nothing is left to share
    }
    traits_ = traits_of(policy_);
    list_staying();
    divide_layers();
    const bool full = is_full() || flat_.is_outgrown();
    if (cache_.n_past == 0 || (!full && !traits_.every_row && !(traits_.accumulates && params_.probed))) {
        return;
    }
    llama_synchronize(cache_.ctx);
    devices_.begin();
    start_us_ = ggml_time_us();
    team_.emplace(work_.scratch.size());
    score_all();
    if (full) {
        choose_all();
        moves_.emplace(heads_to_move());
    }
    outcome_   = full ? Outcome::evicted : Outcome::carried;
    chosen_us_ = ggml_time_us();
}

void Compaction::score_all() {
    list_parts();
    devices_.square_values();
    for (const QueryRows & rows : parts_) {
        score_by(rows);
    }
}

// Score every cell by some rows: those of the text, or of one part of a probe.
void Compaction::score_by(const QueryRows & rows) {
    devices_.score_pools(rows, is_first(rows), layer_budgets_);
    if (policy_.base == EDGEKV_BASE_CUSTOM) { // a layer's heads are scored by one call, which the loop over its heads needs
        on_layers([&](uint32_t il, Scratch & scratch) {
            score_custom(il, rows);
            for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
                score_head(il, g, rows, scratch);
            }
        });
        return;
    }
    on_heads([&](uint32_t il, uint32_t g, Scratch & scratch) { score_head(il, g, rows, scratch); });
}

void Compaction::choose_all() {
    divide_heads();
    devices_.norm_values();
    if (policy_.critical) {
        on_layers([&](uint32_t il, Scratch & scratch) { update_wo_norms(il, scratch); });
    }
    devices_.measure_values(work_.scratch.front());
    on_heads([&](uint32_t il, uint32_t g, Scratch & scratch) { choose_head(il, g, scratch); });
}

edgekv_compaction Compaction::commit(edgekv_cache & cache) {
    edgekv_compaction result = {};
    if (outcome_ == Outcome::nothing) {
        return result;
    }
    const Computing computing;
    cache.n_fresh_ = cache.n_missed_ = 0;
    if (outcome_ == Outcome::counted) {
        return result;
    }
    if (traits_.accumulates) {
        cache.cells_.carry_on(work_.cells.next);
    }
    result.score_us = chosen_us_ - start_us_;
    if (outcome_ == Outcome::evicted) {
        result.n_evicted = flat_.n_before_open() + uint64_t(flat_.n_heads()) * cache.n_filled_ -
                           std::accumulate(budgets_.begin(), budgets_.end(), uint64_t(0));
        evict(cache);
        result.move_us = ggml_time_us() - chosen_us_;
    }
    result.n_staged      = devices_.n_staged();
    result.crossed_bytes = devices_.crossed_bytes();
    return result;
}

// Move what stays. If a device fails, rows are lost, and the cache is emptied.
void Compaction::evict(edgekv_cache & cache) {
    cache.normed_  = policy_.critical ? cache.n_past : cache.normed_;
    const auto end = static_cast<int32_t>(*std::max_element(budgets_.begin(), budgets_.end()));
    try {
        on_layers([&](uint32_t il, Scratch & scratch) {
            close_gaps(cache, il, scratch);
            if (params_.reposition != 0) {
                reposition(cache, il, end);
            }
        });
        devices_.finish();
        cache.rope_past = params_.reposition != 0 ? end : cache.rope_past;
        move_heads(cache);
    } catch (...) {
        cache.clear();
        throw;
    }
}

} // namespace edgekv
