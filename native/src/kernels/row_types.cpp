#include "kernels/row_types.h"

#include "hooks/processor.h"
#include "hooks/status.h"
#include "kernels/kernels.h"

#include <cstring>

namespace edgekv {

static void copy_f32(const void * src, float * dst, int64_t n) { std::memcpy(dst, src, sizeof(float) * n); }

// ggml's generic half conversion is scalar; the processor's own is about ten times faster
static void convert_f16(const void * src, float * dst, int64_t n) {
    static const bool ready = (processor().init(), true); // fills the table that the odd elements are looked up in
    (void) ready;
    processor().fp16_to_fp32(static_cast<const ggml_fp16_t *>(src), dst, n);
}

static bool is_known(int32_t type) { return type >= 0 && type < GGML_TYPE_COUNT; }

ggml_to_float_t row_to_float(int32_t type) {
    switch (type) {
        case GGML_TYPE_F32:  return copy_f32;
        case GGML_TYPE_F16:  return convert_f16;
        default:             break;
    }
    const ggml_to_float_t convert = is_known(type) ? ggml_get_type_traits(static_cast<ggml_type>(type))->to_float : nullptr;
    if (convert == nullptr) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "rows of ggml type %d cannot be read; use F32, F16, Q8_0 or Q4_0", type);
    }
    return convert;
}

// that of the graph which stores keys and values
ggml_from_float_t row_from_float(int32_t type) {
    const ggml_from_float_t convert =
        is_known(type) ? processor().type_traits(static_cast<ggml_type>(type))->from_float : nullptr;
    if (convert == nullptr) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "rows of ggml type %d cannot be written; use F32, F16, Q8_0 or Q4_0", type);
    }
    return convert;
}

void rotate_hadamard(float * row, uint32_t dim, uint32_t run) { kernels().rotate(row, dim, run); }

} // namespace edgekv
