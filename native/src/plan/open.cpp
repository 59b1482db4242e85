#include "plan/open.h"

#include "hooks/given.h"
#include "llama-model.h"
#include "plan/process.h"

#include <algorithm>
#include <string>

namespace edgekv {

namespace {

// Called before each weight is read: gives back the buffer that the last weight was repacked from.
bool give_back(float /*progress*/, void * /*user_data*/) {
    return_freed_memory();
    return true;
}

// More than 32 bits count stays more than any context has.
uint32_t counted(uint64_t n) { return static_cast<uint32_t>(std::min<uint64_t>(n, UINT32_MAX)); }

// Rows of a quantised type are made of blocks.
void require_heads(const llama_model & model, int32_t kv_type) {
    const uint32_t head_dim = model.hparams.n_embd_head_k();
    const int64_t  block    = ggml_blck_size(static_cast<ggml_type>(kv_type));
    if (head_dim % block != 0) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT,
             "kv_type=%s needs heads of a multiple of %d elements, but those of the model have %u; use kv_type=f16",
             ggml_type_name(static_cast<ggml_type>(kv_type)), static_cast<int>(block), head_dim);
    }
}

Model load(const char * path, const llama_model_params & params, uint32_t n_streamed) {
    llama_backend_init();
    llama_model * model = nullptr;
    checked(edgekv_model_load, path, &params, n_streamed, &model);
    return Model(model, llama_model_free);
}

llama_model_params unmapped_params(bool repack) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers       = 0;
    params.use_extra_bufts    = repack;
    params.load_mode          = LLAMA_LOAD_MODE_NONE;
    return params;
}

} // namespace

void require_type(int32_t kv_type) {
    if (kv_type != GGML_TYPE_F16 && kv_type != GGML_TYPE_Q8_0 && kv_type != GGML_TYPE_Q4_0) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "kv_type = %d is unknown; give GGML_TYPE_F16, GGML_TYPE_Q8_0 or GGML_TYPE_Q4_0", kv_type);
    }
}

// Weights are mapped if all of them lie in memory as in the file.
Model load_model(const char * path, const edgekv_plan & plan) {
    llama_model_params params = unmapped_params(plan.setting.repack != 0);
    if (plan.setting.repack == 0 && plan.parts.slot_bytes == 0) {
        params.load_mode = LLAMA_LOAD_MODE_MMAP;
    } else {
        params.progress_callback = give_back;
    }
    return load(path, params, plan.setting.n_streamed);
}

Model load_without_weights(const char * path, bool repack, int32_t gpu_layers, const float * tensor_split) {
    llama_model_params params = unmapped_params(repack);
    params.no_alloc           = true;
    params.n_gpu_layers       = gpu_layers;
    params.tensor_split       = tensor_split;
    return load(path, params, 0);
}

edgekv_layout layout_for(uint32_t budget, uint32_t block, uint32_t n_probe, uint32_t ragged, uint32_t n_ctx_train) {
    const uint64_t n_cells = uint64_t(budget) + block + n_probe;
    const uint64_t least   = n_cells + uint64_t(EDGEKV_HEAD_LEAST - 1) * budget;
    const uint64_t most    = n_cells + uint64_t(EDGEKV_HEAD_LIMIT - 1) * budget;

    edgekv_layout layout = default_of<edgekv_layout>();
    layout.n_cells       = counted(n_cells);
    layout.n_cells_max   = counted(ragged == 0 ? n_cells : std::clamp<uint64_t>(n_ctx_train / 2, least, most));
    layout.n_probe       = n_probe;
    return layout;
}

void require_whole(const edgekv_plan & plan) {
    if (plan.n_bytes != sizeof(plan)) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "plan.n_bytes = %u, but a plan has %zu bytes here; begin with edgekv_plan_default(), and compile "
             "the program with the headers of this library", plan.n_bytes, sizeof(plan));
    }
}

Context new_context(llama_model & model, const edgekv_plan & plan) {
    const uint32_t       n_outputs = std::max(plan.layout.n_slots, 1 + plan.cache.n_draft);
    const uint32_t       n_cells   = plan.layout.n_cells;
    llama_context_params params;
    checked(edgekv_context_params_for, &model, plan.setting.kv_type, n_cells, plan.n_ubatch, n_outputs, plan.n_threads, &params);
    llama_context * ctx = nullptr;
    checked(edgekv_context_new, &model, &params, &plan.layout, &ctx);
    return Context(ctx, llama_free);
}

} // namespace edgekv

using namespace edgekv;

enum edgekv_status edgekv_layout_for(uint32_t budget, uint32_t block, uint32_t n_probe, uint32_t ragged, uint32_t n_ctx_train,
                                     struct edgekv_layout * layout, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(layout, "layout is NULL");
        give_back(layout_for(budget, block, n_probe, ragged, n_ctx_train), *layout);
    });
}

enum edgekv_status edgekv_context_params_for(const struct llama_model * model, int32_t kv_type, uint32_t n_cells, uint32_t n_ubatch,
                                             uint32_t n_outputs, uint32_t n_threads, struct llama_context_params * params, char * err,
                                             size_t err_size) {
    return guard(err, err_size, [&] {
        require(model && params, "model or params is NULL");
        require_type(kv_type);
        require_heads(*model, kv_type);
        *params = llama_context_default_params();

        params->n_ctx           = n_cells;
        params->n_batch         = n_ubatch;
        params->n_ubatch        = n_ubatch;
        params->n_seq_max       = 1;
        params->n_outputs_max   = n_outputs;
        params->n_threads       = static_cast<int32_t>(n_threads);
        params->n_threads_batch = static_cast<int32_t>(n_threads);
        params->flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params->type_k          = static_cast<ggml_type>(kv_type);
        params->type_v          = params->type_k;
        params->no_perf         = true;
        params->op_offload      = false; // what the host holds is computed there; blocks sent to Vulkan came out wrong
    });
}

enum edgekv_status edgekv_plan_open(const char * path, const struct edgekv_plan * plan, struct llama_model ** model,
                                    struct llama_context ** ctx, struct edgekv_cache ** cache, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(path && plan && model && ctx && cache, "path, plan, model, ctx or cache is NULL");
        require_whole(*plan);
        return_freed_memory();
        Model loaded = with_path(path, [&] { return load_model(path, *plan); });
        return_freed_memory(); // what loading took beside the model
        Context opened = new_context(*loaded, *plan);
        checked(edgekv_cache_open, opened.get(), &plan->cache, cache);
        return_freed_memory();
        *ctx   = opened.release();
        *model = loaded.release();
    });
}
