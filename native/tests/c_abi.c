// c_abi MODEL [KV_TYPE]: a C program that has nothing but edgekv.h (and llama.h with it).
#include "edgekv.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET 48
#define BLOCK  16
#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: failed: %s (%s)\n", __FILE__, __LINE__, #condition, err); \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

static char err[512] = "no message";

static enum ggml_type type_of(const char * name) {
    return strcmp(name, "q8_0") == 0 ? GGML_TYPE_Q8_0 : strcmp(name, "q4_0") == 0 ? GGML_TYPE_Q4_0 : GGML_TYPE_F16;
}

static void refuse_what_is_no_model(const char * program) {
    const struct llama_model_params params = llama_model_default_params();
    struct llama_model *            model  = NULL;
    const char * const              no_models[2] = { "/nowhere/model.gguf", program };
    for (int i = 0; i < 2; ++i) {
        err[0] = '\0';
        CHECK(edgekv_model_load(no_models[i], &params, 0, &model, err, sizeof(err)) == EDGEKV_STATUS_MODEL_INVALID);
        CHECK(model == NULL && err[0] != '\0');
    }
    CHECK(edgekv_model_load(no_models[0], NULL, 0, &model, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(strcmp(err, "path, params or model is NULL") == 0);
    CHECK(edgekv_model_load(NULL, &params, 0, &model, NULL, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_model_load(no_models[0], &params, 0, &model, err, 4) == EDGEKV_STATUS_MODEL_INVALID && strlen(err) == 3);
}

static const struct edgekv_layout layout = { sizeof(struct edgekv_layout), BUDGET + BLOCK, BUDGET + BLOCK, 0, 1 };

// Contexts that llama.cpp makes and edgekv cannot use.
static void refuse_contexts(struct llama_model * model, struct llama_context_params params) {
    struct edgekv_layout             few   = { sizeof(struct edgekv_layout), 64, 63, 0 };
    const struct edgekv_cache_params plain = edgekv_cache_params_default();
    struct edgekv_cache *            cache = NULL;
    struct llama_context *           ctx   = NULL;

    CHECK(edgekv_context_new(model, &params, &few, &ctx, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT && ctx == NULL);
    few.n_cells = 1;
    CHECK(edgekv_context_new(model, &params, &few, &ctx, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT && ctx == NULL);

    params.n_ctx = 256;
    CHECK(edgekv_context_new(model, &params, NULL, &ctx, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_open(ctx, &plain, &cache, err, sizeof(err)) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(strstr(err, "layout") != NULL && cache == NULL);
    llama_free(ctx);

    params.n_seq_max = 2;
    CHECK(edgekv_context_new(model, &params, &layout, &ctx, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_open(ctx, &plain, &cache, err, sizeof(err)) == EDGEKV_STATUS_UNSUPPORTED);
    CHECK(strstr(err, "n_seq_max = 1") != NULL && cache == NULL);
    llama_free(ctx);

    params.n_seq_max       = 1;
    params.type_k          = GGML_TYPE_F16;
    params.type_v          = GGML_TYPE_F16;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    CHECK(edgekv_context_new(model, &params, &layout, &ctx, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_open(ctx, &plain, &cache, err, sizeof(err)) == EDGEKV_STATUS_UNSUPPORTED);
    CHECK(strstr(err, "flash attention") != NULL && cache == NULL);
    llama_free(ctx);
}

static void feed_and_compact(struct llama_context * ctx) {
    const struct edgekv_cache_params plain      = edgekv_cache_params_default();
    const int32_t                    pinned[2]  = { 20, 24 };
    const struct edgekv_protection   protection = { sizeof(struct edgekv_protection), 4, 8, pinned, 1 };
    struct edgekv_policy             policy     = edgekv_policy_default();
    struct edgekv_compaction         result     = { 0 };
    struct edgekv_cache *            cache      = NULL;
    struct edgekv_shape              shape      = { 0 };
    struct edgekv_memory             memory     = { 0 };

    CHECK(edgekv_policy_parse("keydiff(kernel=7)", &policy, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(policy.base == EDGEKV_BASE_KEYDIFF && policy.kernel == 7);
    CHECK(edgekv_context_shape(ctx, &shape, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_context_memory(ctx, &memory, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(memory.kv_bytes == shape.cell_bytes * shape.n_cells && memory.weight_bytes > 0);
    CHECK(edgekv_cache_open(ctx, &plain, &cache, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_bytes(cache) == edgekv_cache_estimate_bytes(&shape, &plain));

    for (int32_t past = 0; past < 12 * BLOCK; past += BLOCK) {
        llama_token tokens[BLOCK];
        for (int32_t i = 0; i < BLOCK; ++i) {
            tokens[i] = (5 * (past + i) + 1) % 100;
        }
        CHECK(edgekv_cache_n_past(cache) == past);
        CHECK(edgekv_cache_feed(cache, tokens, BLOCK, 1, err, sizeof(err)) == EDGEKV_STATUS_OK);
        CHECK(llama_get_logits_ith(ctx, -1) != NULL);
        const struct edgekv_compaction_params how = { sizeof(struct edgekv_compaction_params), &policy, &protection, BUDGET, 0, 0, 0, NULL };
        CHECK(edgekv_cache_compact(cache, &how, &result, err, sizeof(err)) == EDGEKV_STATUS_OK);
        CHECK(result.n_evicted == (past < BUDGET ? 0 : (uint64_t) BLOCK * shape.n_head_total));
    }
    CHECK(edgekv_cache_n_cells(cache) == BUDGET);

    int32_t positions[BUDGET];
    for (uint32_t layer = 0; layer < shape.n_layer; ++layer) {
        CHECK(edgekv_cache_positions(cache, layer, 0, positions, err, sizeof(err)) == EDGEKV_STATUS_OK);
        for (int i = 1; i < BUDGET; ++i) {
            CHECK(positions[i] > positions[i - 1]);
        }
        int n_pinned = 0;
        for (int i = 0; i < BUDGET; ++i) {
            n_pinned += positions[i] >= pinned[0] && positions[i] < pinned[1];
        }
        CHECK(positions[3] == 3 && n_pinned == 4 && positions[BUDGET - 8] == 12 * BLOCK - 8);
    }
    CHECK(edgekv_cache_positions(cache, shape.n_layer, 0, positions, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);

    struct edgekv_rows rows = edgekv_rows_default();
    const size_t       size = (size_t) (shape.cell_bytes * BUDGET); // more than one head's
    void *             keys = malloc(size);
    CHECK(keys != NULL);
    CHECK(edgekv_cache_read(cache, 0, 0, 0, keys, size, &rows, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(rows.n == BUDGET && rows.dim == shape.head_dim_k && rows.data == keys);
    free(keys);

    const size_t n_bytes  = (size_t) edgekv_cache_snapshot_bytes(cache, NULL);
    void *       snapshot = malloc(n_bytes);
    CHECK(snapshot != NULL && n_bytes > shape.cell_bytes * BUDGET);
    CHECK(edgekv_cache_save(cache, NULL, 0, snapshot, n_bytes, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_clear(cache, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_restore(cache, snapshot, n_bytes, err, sizeof(err)) == EDGEKV_STATUS_OK);
    const size_t rows_begin = (size_t) ((const struct edgekv_snapshot *) snapshot)->rows_begin;
    CHECK(edgekv_cache_restore_numbers(cache, snapshot, rows_begin, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_restore_rows(cache, NULL, rows_begin, (const char *) snapshot + rows_begin, n_bytes - rows_begin, err,
                                    sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_n_cells(cache) == BUDGET && edgekv_cache_n_past(cache) == 12 * BLOCK);
    free(snapshot);
    edgekv_cache_free(cache);
}

// What a program with an older header gives: the first bytes of a struct, and nothing behind them.
static void * cut(const void * whole, uint32_t n_bytes) {
    char * made = malloc(n_bytes);
    CHECK(made != NULL);
    memcpy(made, whole, n_bytes);
    memcpy(made, &n_bytes, sizeof(n_bytes));
    return made;
}

static void take_structs_of_other_headers(struct llama_context * ctx) {
    const llama_token                tokens[8]  = { 1, 2, 3, 4, 5, 6, 7, 8 };
    const struct edgekv_cache_params plain      = edgekv_cache_params_default();
    const struct edgekv_policy       policy     = edgekv_policy_default();
    const struct edgekv_protection   protection = edgekv_protection_default();
    struct edgekv_compaction_params  how        = edgekv_compaction_params_default();
    struct edgekv_cache *            cache      = NULL;
    struct edgekv_compaction         result;

    void * old_params     = cut(&plain, offsetof(struct edgekv_cache_params, slot));
    void * old_policy     = cut(&policy, offsetof(struct edgekv_policy, pool));
    void * old_protection = cut(&protection, offsetof(struct edgekv_protection, n_sink));
    how.policy            = old_policy;
    how.protection        = old_protection;
    how.budget            = 4;
    void * old_how        = cut(&how, offsetof(struct edgekv_compaction_params, probed));
    CHECK(edgekv_cache_open(ctx, old_params, &cache, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_feed(cache, tokens, 8, 0, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_compact(cache, old_how, &result, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_n_cells(cache) == 4);

    struct {
        struct edgekv_part known;
        uint64_t           further;
    } newer[2];
    memset(newer, 0, sizeof(newer));
    newer[0].known         = edgekv_part_default();
    newer[0].known.n_bytes = sizeof(newer[0]);
    newer[0].known.cache   = cache;
    newer[0].known.tokens  = tokens;
    newer[0].known.n       = 3;
    CHECK(edgekv_cache_feed_together(&newer[0].known, 1, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_n_past(cache) == 11 && newer[0].known.n_bytes == sizeof(newer[0]));
    newer[1] = newer[0]; // the library finds it, and sees that it is the same cache
    CHECK(edgekv_cache_feed_together(&newer[0].known, 2, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(err, "fed twice") != NULL);
    newer[0].further = 1;
    CHECK(edgekv_cache_feed_together(&newer[0].known, 1, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(err, "edgekv_part") != NULL && edgekv_cache_n_past(cache) == 11);

    how.n_bytes = 8;
    CHECK(edgekv_cache_compact(cache, &how, &result, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(err, "n_bytes = 8 is not the size of a struct edgekv_compaction_params") != NULL);
    edgekv_cache_free(cache);
    free(old_params);
    free(old_policy);
    free(old_protection);
    free(old_how);
}

static void plan_and_open(const char * path, int32_t kv_type) {
    struct edgekv_plan_request request = edgekv_plan_request_default();
    struct edgekv_plan         plan    = edgekv_plan_default();
    struct llama_model *       model   = NULL;
    struct llama_context *     ctx     = NULL;
    struct edgekv_cache *      cache   = NULL;
    struct edgekv_memory       memory  = { 0 };

    request.n_threads = 1;
    request.n_probe   = BLOCK; // the trained context has no room for more
    request.kv_type   = kv_type;
    CHECK(edgekv_plan_make(path, &request, &plan, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT); // no ceiling
    CHECK(edgekv_plan_make("/nowhere/model.gguf", &request, NULL, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    request.ceiling_bytes = 1;
    CHECK(edgekv_plan_make("/nowhere/model.gguf", &request, &plan, err, sizeof(err)) == EDGEKV_STATUS_MODEL_INVALID);
    CHECK(strstr(err, "/nowhere/model.gguf") != NULL);
    CHECK(edgekv_plan_make(path, &request, &plan, err, sizeof(err)) == EDGEKV_STATUS_OVER_CEILING);
    CHECK(plan.peak_bytes > 1 && plan.setting.budget == request.n_sink + request.n_recent + 1);

    request.ceiling_bytes = plan.peak_bytes + (256u << 20); // what the process holds may change from plan to plan
    CHECK(edgekv_plan_make(path, &request, &plan, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(plan.peak_bytes <= request.ceiling_bytes && plan.setting.kv_type == kv_type);
    CHECK(edgekv_plan_open("/nowhere/model.gguf", &plan, &model, &ctx, &cache, err, sizeof(err)) == EDGEKV_STATUS_MODEL_INVALID);
    CHECK(model == NULL && ctx == NULL && cache == NULL);
    CHECK(edgekv_plan_open(path, &plan, &model, &ctx, &cache, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(edgekv_context_memory(ctx, &memory, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(memory.kv_bytes == plan.parts.kv_bytes && edgekv_cache_bytes(cache) == plan.parts.bookkeeping_bytes);
    CHECK(edgekv_cache_n_free(cache) == plan.layout.n_cells);
    edgekv_cache_free(cache);
    llama_free(ctx);
    llama_model_free(model);
}

static struct edgekv_layout layout_for(uint32_t n_probe, uint32_t ragged, uint32_t n_ctx_train) {
    struct edgekv_layout made = edgekv_layout_default();
    CHECK(edgekv_layout_for(BUDGET, BLOCK, n_probe, ragged, n_ctx_train, &made, err, sizeof(err)) == EDGEKV_STATUS_OK);
    return made;
}

// The library's own parameters, and what it refuses.
static void fill_params(const struct llama_model * model, enum ggml_type type, struct llama_context_params * params) {
    const uint32_t             spare  = BLOCK + 5;
    const struct edgekv_layout ragged = layout_for(5, 1, 1 << 20);
    const struct edgekv_layout even   = layout_for(0, 0, 1 << 20);

    CHECK(ragged.n_cells == BUDGET + spare && ragged.n_cells_max == EDGEKV_HEAD_LIMIT * BUDGET + spare && ragged.n_probe == 5);
    CHECK(layout_for(5, 1, 10 * BUDGET).n_cells_max == 5 * BUDGET); // half of the trained context
    CHECK(layout_for(5, 1, 2 * BUDGET).n_cells_max == EDGEKV_HEAD_LEAST * BUDGET + spare);
    CHECK(memcmp(&even, &layout, sizeof(layout)) == 0);
    CHECK(edgekv_context_params_for(model, GGML_TYPE_Q5_0, 0, BLOCK, 1, 1, params, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(err, "kv_type") != NULL);
    CHECK(edgekv_context_params_for(NULL, type, 0, BLOCK, 1, 1, params, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_context_params_for(model, type, 0, BLOCK, 1, 1, NULL, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_context_params_for(model, type, 0, BLOCK, 2, 1, params, err, sizeof(err)) == EDGEKV_STATUS_OK);
    CHECK(params->n_batch == BLOCK && params->n_ubatch == BLOCK && params->n_outputs_max == 2 && params->n_threads == 1);
    CHECK(params->type_k == type && params->type_v == type);
}

int main(int argc, char ** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: c_abi MODEL [KV_TYPE]\n");
        return 2;
    }
    CHECK(edgekv_abi_version() == EDGEKV_ABI_VERSION);
    refuse_what_is_no_model(argv[0]);
    plan_and_open(argv[1], type_of(argc > 2 ? argv[2] : "f16"));

    const struct llama_model_params model_params = llama_model_default_params();
    struct llama_model *            model        = NULL;
    CHECK(edgekv_model_load(argv[1], &model_params, 0, &model, err, sizeof(err)) == EDGEKV_STATUS_OK);

    struct llama_context_params params;
    struct llama_context *      ctx = NULL;

    fill_params(model, type_of(argc > 2 ? argv[2] : "f16"), &params);
    refuse_contexts(model, params);
    CHECK(edgekv_context_new(model, &params, &layout, &ctx, err, sizeof(err)) == EDGEKV_STATUS_OK);
    feed_and_compact(ctx);
    take_structs_of_other_headers(ctx);
    llama_free(ctx);
    llama_model_free(model);
    puts("OK");
    return 0;
}
