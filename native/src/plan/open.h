// Models and contexts as a plan has them.
#pragma once

#include "edgekv.h"
#include "hooks/status.h"

#include <memory>
#include <new>

namespace edgekv {

using Model   = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

// Throw Error(EDGEKV_STATUS_INVALID_ARGUMENT) for types that no cache has.
void require_type(int32_t kv_type);

// The model of a plan. Throws Error.
Model load_model(const char * path, const edgekv_plan & plan);

// Its metadata and vocabulary alone. Throws Error.
Model load_without_weights(const char * path, bool repack);

// The layout that holds a budget, a block and a probe, as edgekv_layout_for says.
edgekv_layout layout_for(uint32_t budget, uint32_t block, uint32_t n_probe, uint32_t ragged, uint32_t n_ctx_train);

// Throw Error(EDGEKV_STATUS_INVALID_ARGUMENT) for a plan of another size than this library's.
void require_whole(const edgekv_plan & plan);

// Throws Error(EDGEKV_STATUS_INVALID_ARGUMENT) if the model cannot have the plan's type of cache.
Context new_context(const Model & model, const edgekv_plan & plan);

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
