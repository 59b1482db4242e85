// What a context's cache looks like, in numbers.
#pragma once

#include "edgekv.h"

namespace edgekv {

// Throws Error where the context is none that edgekv runs.
edgekv_shape shape_of(const llama_context * ctx);

} // namespace edgekv
