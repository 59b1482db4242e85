// RoPE of a context's layers, as far as keys can be turned to other positions.
#pragma once

#include "rope/rope_angles.h"

#include <cstdint>

struct llama_context;

namespace edgekv {

// Throws Error(EDGEKV_STATUS_UNSUPPORTED) where other layers keep their positions, so that all must.
void require_movable(const llama_context & ctx);

// Of llama.cpp's layer il. Also throws where positions do not come from RoPE, or the context is not one that edgekv runs.
RopeAngles rope_angles(const llama_context & ctx, uint32_t il);

// Throws if the keys of any layer cannot be turned, as rope_angles(ctx, il) does. The model's weights need not be loaded.
void require_turnable(const llama_context & ctx);

} // namespace edgekv
