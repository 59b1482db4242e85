// The shape of a context's cache, in numbers.
#pragma once

#include "edgekv.h"

namespace edgekv {

// Throws Error if edgekv cannot run the context.
edgekv_shape shape_of(const llama_context * ctx);

} // namespace edgekv
