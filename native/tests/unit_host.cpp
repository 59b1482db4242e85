// What the library leaves to its host: callbacks of llama.cpp and ggml, and arguments and graphs that it refuses.
#include "cache/shape.h"
#include "rows/memory.h"
#include "cache_fixture.h"
#include "hooks/aborts.h"
#include "hooks/status.h"
#include "llama-context.h"
#include "llama-kv-cache.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

using namespace edgekv;

namespace {

int     n_logged = 0;
bool    was_told = false;
uint8_t host_data;

void count_errors(ggml_log_level level, const char *, void * user_data) {
    n_logged += level == GGML_LOG_LEVEL_ERROR && user_data == &host_data;
}

void tell_host(const char * message) {
    was_told = std::strstr(message, "a test") != nullptr;
    throw 7; // out of ggml_abort, which would end the process
}

void test_log_callback() {
    ggml_log_callback before, after;
    void *            data_before;
    void *            data_after;
    llama_log_get(&before, &data_before);
    llama_log_set(count_errors, &host_data);
    const llama_model_params params = llama_model_default_params();
    llama_model *            model  = nullptr;
    char                     err[512];
    for (int i = 0; i < 2; ++i) {
        n_logged = 0;
        CHECK(edgekv_model_load("/proc/self/cmdline", &params, 0, &model, err, sizeof(err)) == EDGEKV_STATUS_MODEL_INVALID);
        CHECK(n_logged > 0); // and so does the host
        llama_log_get(&after, &data_after);
        CHECK(after == count_errors && data_after == &host_data);
    }
    llama_log_set(before, data_before);
}

void test_abort_callback() {
    const ggml_abort_callback_t before = ggml_set_abort_callback(tell_host);
    {
        const Contained outer;
        CHECK(guard(nullptr, 0, [] { GGML_ABORT("a test"); }) == EDGEKV_STATUS_INTERNAL);
        bool is_thrown = false; // of the outer call, too, once an inner one has returned
        try {
            GGML_ABORT("a test");
        } catch (const Error &) {
            is_thrown = true;
        } catch (int) {
        }
        CHECK(is_thrown && !was_told);
        const Computing computing; // nobody can leave now, so the process would end: the host is told
        try {
            GGML_ABORT("a test");
        } catch (int) {
        }
        CHECK(was_told);
    }
    CHECK(ggml_set_abort_callback(before) == tell_host);
}

void test_planned_context(const char * path) {
    edgekv_plan_request request = edgekv_plan_request_default();
    request.ceiling_bytes       = uint64_t(4) << 30;
    request.budget              = 64;
    request.n_threads           = 1;
    edgekv_plan     plan = edgekv_plan_default();
    llama_model *   model = nullptr;
    llama_context * ctx   = nullptr;
    edgekv_cache *  cache = nullptr;
    char            err[512];
    if (CHECK(edgekv_plan_make(path, &request, &plan, err, sizeof(err)) == EDGEKV_STATUS_OK) &&
        CHECK(edgekv_plan_open(path, &plan, &model, &ctx, &cache, err, sizeof(err)) == EDGEKV_STATUS_OK)) {
        CHECK(!ctx->get_cparams().op_offload); // as Python has it
    } else {
        std::fprintf(stderr, "%s\n", err);
    }
    edgekv_cache_free(cache);
    llama_free(ctx);
    llama_model_free(model);
}

// Parameters as llama.cpp gives them by itself, and zeros, will do.
void test_default_parameters(const char * path, uint32_t n_streamed) {
    const llama_model_params   of_model   = llama_model_default_params();
    const llama_context_params of_context = llama_context_default_params();
    const edgekv_layout        layout     = layout_for(40, n_ubatch, 0, 0, 0);
    const edgekv_cache_params  of_cache   = edgekv_cache_params_default();
    const llama_token          token      = 3;
    llama_model *              model      = nullptr;
    llama_context *            ctx        = nullptr;
    edgekv_cache *             cache      = nullptr;
    edgekv_streaming           streaming  = {};
    CHECK(edgekv_model_load(path, &of_model, n_streamed, &model, nullptr, 0) == EDGEKV_STATUS_OK &&
          edgekv_model_streaming(model, &streaming, nullptr, 0) == EDGEKV_STATUS_OK && streaming.n_streamed == n_streamed &&
          edgekv_context_new(model, &of_context, &layout, &ctx, nullptr, 0) == EDGEKV_STATUS_OK &&
          edgekv_cache_open(ctx, &of_cache, &cache, nullptr, 0) == EDGEKV_STATUS_OK &&
          edgekv_cache_feed(cache, &token, 1, 1, nullptr, 0) == EDGEKV_STATUS_OK);
    edgekv_cache_free(cache);
    llama_free(ctx);
    llama_model_free(model);
}

// No sum of numbers that a host gives comes out as a small one.
void test_numbers_of_any_size(const Model & model, const char * kv_type) {
    const Context context(model, kv_type);
    edgekv_shape  shape;
    CHECK(edgekv_context_shape(context.ctx, &shape, nullptr, 0) == EDGEKV_STATUS_OK);
    for (const auto & [n_rows, n_probe] : { std::pair(UINT32_MAX, 0u), std::pair(0u, UINT32_MAX), std::pair(1u << 31, 1u << 31) }) {
        edgekv_cache_params params = edgekv_cache_params_default();
        edgekv_cache *      cache  = nullptr;
        params.n_query_rows        = n_rows;
        params.n_probe_rows        = n_probe;
        params.n_draft             = 1;
        CHECK(edgekv_cache_open(context.ctx, &params, &cache, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT && cache == nullptr);
        CHECK(edgekv_cache_estimate_bytes(&shape, &params) >= uint64_t(UINT32_MAX) * shape.query_row_bytes);
    }
    const llama_context_params params = llama_context_default_params();
    llama_context *            ctx    = nullptr;
    for (const edgekv_layout & layout : { edgekv_layout{ sizeof(edgekv_layout), UINT32_MAX, UINT32_MAX, 0 },
                                          edgekv_layout{ sizeof(edgekv_layout), 256, 256, UINT32_MAX } }) {
        CHECK(edgekv_context_new(model.model, &params, &layout, &ctx, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT && ctx == nullptr);
    }
}

void test_drafts_of_any_length(const Model & model, const char * kv_type) {
    const Context       context(model, kv_type);
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.n_draft             = 2;
    const Cache       cache   = open_cache(context, needs);
    const llama_token draft[] = { 5, 7, 11 };
    for (const size_t n : { size_t(3), SIZE_MAX, SIZE_MAX - 1 }) {
        CHECK(edgekv_cache_feed_draft(cache.get(), 3, draft, n, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    CHECK(cache->n_past == 0 && edgekv_cache_feed_draft(cache.get(), 3, draft, 2, nullptr, 0) == EDGEKV_STATUS_OK);
}

// A policy that scores by every token is not given fewer rows than tokens.
void test_rows_for_every_token(const Model & model, const char * kv_type) {
    const Context       context(model, kv_type);
    const edgekv_policy policy = policy_of(EDGEKV_BASE_H2O);
    edgekv_cache_params needs  = edgekv_cache_params_default();
    CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
    const Cache cache = open_cache(context, needs);
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && compact(cache, policy, 8) == EDGEKV_STATUS_OK);
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && feed(cache, 1) == EDGEKV_STATUS_OK);
    const Bytes                    before     = save(cache);
    const edgekv_protection        protection = edgekv_protection_default();
    const edgekv_compaction_params params     = { sizeof(edgekv_compaction_params), &policy, &protection, 8, 0, 0, 0, nullptr };
    edgekv_compaction              result;
    char                           err[512] = "";
    CHECK(edgekv_cache_compact(cache.get(), &params, &result, err, sizeof(err)) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(std::string(err).find("these are 33, and the cache keeps the queries of 32") != std::string::npos);
    CHECK(save(cache) == before);
    CHECK(compact(cache, policy_of(EDGEKV_BASE_KEYDIFF), 8) == EDGEKV_STATUS_OK); // others may score
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && compact(cache, policy, 8) == EDGEKV_STATUS_OK);
    // a snapshot may be of a cache with more rows: its tokens without queries here do not score
    CHECK(restore(cache, before) == EDGEKV_STATUS_OK && compact(cache, policy, 8) == EDGEKV_STATUS_OK);
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && feed(cache, 1) == EDGEKV_STATUS_OK); // all of which it has fed itself
    CHECK(compact(cache, policy, 8) == EDGEKV_STATUS_INVALID_STATE);
}

// Graphs that attend otherwise than through the hooks: by the rows of a cache that has none in that order, or not at all. Each reads
// keys, writes them or asks where to; what it does with values, masks and inputs comes after that.
void test_unknown_graphs(const Model & model, const char * kv_type) {
    const Context  context(model, kv_type);
    const Cache    cache  = open_cache(context);
    const auto     status = [](auto call) { return guard(nullptr, 0, call); };
    const Memory   memory = memory_of(context.ctx);
    llama_kv_cache & kv   = *memory.cache;
    const uint32_t il     = memory.flat->layers().front().il;
    CHECK(status([&] { kv.get_k_storage(il); }) == EDGEKV_STATUS_UNSUPPORTED);
    CHECK(status([&] { kv.get_k(nullptr, il, 1, {}); }) == EDGEKV_STATUS_UNSUPPORTED);
    CHECK(status([&] { kv.cpy_k(nullptr, nullptr, nullptr, il, {}); }) == EDGEKV_STATUS_UNSUPPORTED);
    CHECK(status([&] { kv.build_input_k_idxs(nullptr, llama_ubatch{}); }) == EDGEKV_STATUS_UNSUPPORTED);
    CHECK(status([&] { kv.set_input_k_shift(nullptr); }) == EDGEKV_STATUS_UNSUPPORTED);

    CHECK(feed(cache, 8) == EDGEKV_STATUS_OK);
    memory.flat->add_reader(99, memory.flat->layers().front().n_head_kv, il); // a layer that no graph knows
    memory.flat->clear();                                                     // the next graph is a new one
    std::string message;
    CHECK(edgekv_cache_clear(cache.get(), nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(feed(cache, 8, &message) == EDGEKV_STATUS_UNSUPPORTED);
    CHECK(message.find("does not attend with layer 99") != std::string::npos);
    CHECK(cache->n_past == 0 && cache->n_free() == cache->shape.n_cells);
    edgekv_shape shape;
    CHECK(edgekv_context_shape(context.ctx, &shape, nullptr, 0) == EDGEKV_STATUS_UNSUPPORTED);
}

} // namespace

void test_host(const char * path, const char * kv_type) {
    test_log_callback();
    test_abort_callback();
    test_planned_context(path);
    test_default_parameters(path, 0);
    test_default_parameters(path, 1);
    const Model model(path);
    test_numbers_of_any_size(model, kv_type);
    test_drafts_of_any_length(model, kv_type);
    test_rows_for_every_token(model, kv_type);
    test_unknown_graphs(model, kv_type);
}
