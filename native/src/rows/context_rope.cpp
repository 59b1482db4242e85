#include "rows/context_rope.h"

#include "llama-context.h"
#include "llama-model.h"
#include "rows/flat_cache.h"
#include "rows/memory.h"

#include <algorithm>

namespace edgekv {

void require_movable(const llama_context & ctx) {
    if (memory_of(&ctx).windows != nullptr) {
        refuse_turns("the layers with a sliding window keep their positions");
    }
}

namespace {

// The layers that evict. Throws if none of them has RoPE, or others keep their positions.
const FlatCache & movable_layers(const llama_context & ctx) {
    const FlatCache & flat   = *memory_of(&ctx).flat;
    const auto &      layers = flat.layers();
    require_movable(ctx);
    const auto has_none = [&](const FlatCache::Layer & layer) { return flat.attention(layer.il).rope.op == GGML_OP_NONE; };
    if (!layers.empty() && std::all_of(layers.begin(), layers.end(), has_none)) {
        refuse_turns("architecture '" + ctx.get_model().arch_name() + "' has no RoPE");
    }
    return flat;
}

} // namespace

RopeAngles rope_angles(const llama_context & ctx, uint32_t il) { return rope_angles(movable_layers(ctx).attention(il).rope); }

void require_turnable(const llama_context & ctx) {
    const FlatCache & flat = movable_layers(ctx);
    for (const FlatCache::Layer & layer : flat.layers()) {
        require_turnable(flat.attention(layer.il).rope);
    }
}

} // namespace edgekv
