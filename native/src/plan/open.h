// Models and contexts as a plan has them.
#pragma once

#include "edgekv.h"
#include "hooks/status.h"

#include <memory>
#include <new>
#include <string>

namespace edgekv {

using Model   = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

// Throw Error(EDGEKV_STATUS_INVALID_ARGUMENT) for types that no cache has.
void require_type(int32_t kv_type);

// The model of a plan. Throws Error.
Model load_model(const char * path, const edgekv_plan & plan);

// Its metadata and vocabulary alone. tensor_split: of layers over devices; NULL = evenly. Throws Error.
Model load_without_weights(const char * path, bool repack, int32_t gpu_layers, const float * tensor_split);

// The layout that holds a budget, a block and a probe, as edgekv_layout_for says.
edgekv_layout layout_for(uint32_t budget, uint32_t block, uint32_t n_probe, uint32_t ragged, uint32_t n_ctx_train);

// Throw Error(EDGEKV_STATUS_INVALID_ARGUMENT) for a plan of another size than this library's.
void require_whole(const edgekv_plan & plan);

// Throws Error(EDGEKV_STATUS_INVALID_ARGUMENT) if the model cannot have the plan's type of cache.
Context new_context(llama_model & model, const edgekv_plan & plan);

// Call what loads a model; a refusal of its file names it, and what to do.
template <typename Load> auto with_path(const char * path, Load && load) {
    try {
        return load();
    } catch (const Error & error) {
        if (error.status != EDGEKV_STATUS_MODEL_INVALID) {
            throw;
        }
        throw Error(error.status, std::string(path) + " is refused: " + error.what() + "; give the path of a whole GGUF file");
    }
}

// Call an entry point of this library; throws Error with its status and message.
template <typename Call, typename... Args> void checked(Call call, Args... args) {
    char                reason[1024] = "";
    const edgekv_status status       = call(args..., reason, sizeof(reason));
    if (status == EDGEKV_STATUS_OUT_OF_MEMORY) {
        throw std::bad_alloc();
    }
    if (status != EDGEKV_STATUS_OK) {
        throw Error(status, reason);
    }
}

} // namespace edgekv
