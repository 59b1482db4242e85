// A context's cache, seen as edgekv needs it.
#pragma once

#include "edgekv.h"

class llama_kv_cache;

namespace edgekv {

// The plain KV cache of a context. Throws Error(EDGEKV_STATUS_UNSUPPORTED) when it has another kind.
llama_kv_cache & plain_cache(const llama_context * ctx);

edgekv_shape shape_of(const llama_context * ctx);

} // namespace edgekv
