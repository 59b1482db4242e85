// Rows that a backend copies byte for byte.
#pragma once

#include "ggml.h"

namespace edgekv {

// Rows as floats that nobody computes with: only so does a backend gather and scatter rows of any type byte for byte.
inline ggml_tensor * as_bits(ggml_context * context, ggml_tensor * rows) {
    ggml_tensor * bits = ggml_view_2d(context, rows, rows->ne[0], rows->ne[1], rows->nb[1], 0);

    bits->type  = GGML_TYPE_F32;
    bits->ne[0] = static_cast<int64_t>(rows->nb[1] / sizeof(float));
    bits->nb[0] = sizeof(float);
    return bits;
}

} // namespace edgekv
