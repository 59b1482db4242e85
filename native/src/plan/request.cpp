#include "plan/request.h"

#include "hooks/given.h"
#include "hooks/status.h"
#include "plan/open.h"
#include "score/policy_names.h"

#include <algorithm>
#include <thread>

namespace edgekv {

namespace {

constexpr uint32_t usual_block = 128; // of a request that leaves it open

void require_range(const char * name, uint64_t value, uint64_t low, uint64_t high) {
    if (value < low || value > high) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "%s = %llu is not possible; give a number in [%llu, %llu]", name,
             static_cast<unsigned long long>(value), static_cast<unsigned long long>(low), static_cast<unsigned long long>(high));
    }
}

uint32_t least_budget(const edgekv_plan_request & request) { return request.n_sink + request.n_recent + 1; }

// A draft and the token before it are at most an eighth of a batch, whose activations then take as much memory as their logits do in
// most models; or four, of which a batch of any length has some.
uint32_t draft_tokens(const edgekv_plan_request & request, uint32_t block) {
    const uint32_t n_batch = std::min(block, request.n_ubatch);
    return std::min({ request.n_draft, std::max(4u, n_batch / 8) - 1, n_batch - 1 });
}

// Refuses what no model can have.
void check(const edgekv_plan_request & request) {
    require_range("ceiling_bytes", request.ceiling_bytes, 1, UINT64_MAX);
    require_range("n_threads", request.n_threads, 1, GGML_MAX_N_THREADS);
    require_range("n_probe", request.n_probe, 0, 1024);
    require_range("n_sink", request.n_sink, 0, 1 << 20);
    require_range("n_recent", request.n_recent, 0, 1 << 30);
    require_range("block", request.block, 0, 4096);
    require_range("n_ubatch", request.n_ubatch, 1, 4096);
    require_range("n_slots", request.n_slots, 1, EDGEKV_MOST_SLOTS);
    require_range("budget", request.budget, 0, 1 << 30);
    require_range("n_streamed + 1", int64_t(request.n_streamed) + 1, 0, 1 << 16);
    if (request.kv_type != 0) {
        require_type(request.kv_type);
    }
    if (request.budget != 0 && request.budget < least_budget(request)) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT,
             "budget = %u does not hold the protected cells: %u sinks and %u recent; raise it to at least %u", request.budget,
             request.n_sink, request.n_recent, least_budget(request));
    }
}

} // namespace

CheckedRequest::CheckedRequest(const edgekv_plan_request & of_program)
    : request_(given(of_program)), policy_(request_.policy != nullptr ? given(*request_.policy) : default_of<edgekv_policy>()),
      probe_policy_(request_.probe_policy != nullptr ? given(*request_.probe_policy) : policy_named(EDGEKV_PROBE_POLICY)) {
    require(request_.limits || request_.n_limits == 0, "limits is NULL");
    for (size_t i = 0; i < request_.n_limits; ++i) {
        limits_.push_back(given(element(request_.limits, i)));
        require(limits_.back().name, "name of a limit is NULL");
    }
    request_.policy       = &policy_;
    request_.probe_policy = &probe_policy_;
    request_.limits       = limits_.data();
    if (request_.n_threads == 0) {
        request_.n_threads = std::min<uint32_t>(std::max(1u, std::thread::hardware_concurrency()), GGML_MAX_N_THREADS);
    }
    check(request_);
}

edgekv_cache_params cache_params(const edgekv_plan_request & request, uint32_t block) {
    edgekv_cache_params params = default_of<edgekv_cache_params>();
    params.n_probe_rows        = request.n_probe;
    params.repositions         = request.repositions != 0;
    params.n_draft             = draft_tokens(request, block);
    checked(edgekv_cache_params_for, request.policy, block, 0, &params);
    if (request.n_probe > 0 && request.probe_scores != 0) {
        checked(edgekv_cache_params_for, request.probe_policy, block, 1, &params);
    }
    return params;
}

uint32_t recalled_cells(const edgekv_plan_request & request, uint32_t block) {
    return std::min(request.n_recalled, (request.n_spare != 0 ? request.n_spare : block) / 2);
}

edgekv_plan plan_without_parts(const edgekv_plan_request & request, const edgekv_setting & setting, uint32_t n_ctx_train) {
    edgekv_plan plan    = default_of<edgekv_plan>();
    plan.ceiling_bytes  = request.ceiling_bytes;
    plan.setting        = setting;
    plan.policy         = *request.policy;
    plan.probe_policy   = *request.probe_policy;
    plan.cache          = cache_params(request, setting.block);
    plan.n_ubatch       = std::min(setting.block, request.n_ubatch);
    plan.n_threads      = request.n_threads;
    plan.n_ctx_train    = n_ctx_train;
    plan.layout         = layout_for(setting.budget, setting.block, plan.cache.n_probe_rows, plan.cache.ragged, n_ctx_train);
    plan.layout.n_slots = request.n_slots;
    if (request.gpu_layers == 0) { // on a device graphs have more nodes for heads that lie unlike
        const uint64_t n_further = (EDGEKV_RECALL_LIMIT - 1) * uint64_t(recalled_cells(request, setting.block));
        const uint64_t most      = std::min<uint64_t>(plan.layout.n_cells + n_further, n_ctx_train);
        plan.layout.n_cells_max  = std::max(plan.layout.n_cells_max, static_cast<uint32_t>(most));
    }
    return plan;
}

edgekv_choice choice_of(const edgekv_plan_request & request, uint32_t n_layers, uint32_t n_ctx_train) {
    edgekv_choice choice = default_of<edgekv_choice>();
    choice.budget        = request.budget;
    choice.least_budget  = least_budget(request);
    choice.block         = request.block;
    choice.least_block   = std::max({ request.least_block, request.n_spare, request.n_slots });
    choice.kv_type       = request.kv_type;
    choice.repack        = request.repack;
    choice.n_streamed    = request.n_streamed;
    choice.n_layers      = n_layers;
    choice.n_probe       = request.n_probe;
    choice.n_ctx_train   = n_ctx_train;
    choice.ragged        = cache_params(request, usual_block).ragged != 0;
    choice.repositions   = request.repositions;
    choice.n_ubatch      = request.n_ubatch;
    choice.recalls       = request.n_recalled != 0;
    if (request.probe_scores == 0) { // a longer block saves no probes: none follows it
        const uint32_t n_probe = request.repositions != 0 ? request.n_probe : 0;
        choice.n_ctx_train     = n_ctx_train - std::min(n_ctx_train, n_probe);
        choice.n_probe         = 0;
    }
    return choice;
}

} // namespace edgekv

using namespace edgekv;

enum edgekv_status edgekv_plan_choice(const struct edgekv_plan_request * request, uint32_t n_layers, uint32_t n_ctx_train,
                                      struct edgekv_choice * choice, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(request && choice, "request or choice is NULL");
        give_back(choice_of(*CheckedRequest(*request), n_layers, n_ctx_train), *choice);
    });
}
