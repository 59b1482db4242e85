#include "hooks/processor.h"

#include "hooks/instructions.h"

#include <cstring>

#ifdef EDGEKV_PORTABLE // the names that native/CMakeLists.txt gives them
#    define EDGEKV_DECLARE(set)                                            \
        extern "C" {                                                       \
        decltype(ggml_backend_cpu_reg)     ggml_backend_cpu_reg_##set;     \
        decltype(ggml_cpu_init)            ggml_cpu_init_##set;            \
        decltype(ggml_cpu_fp16_to_fp32)    ggml_cpu_fp16_to_fp32_##set;    \
        decltype(ggml_get_type_traits_cpu) ggml_get_type_traits_cpu_##set; \
        decltype(ggml_graph_plan)          ggml_graph_plan_##set;          \
        decltype(ggml_graph_compute)       ggml_graph_compute_##set;       \
        }
#    define EDGEKV_PROCESSOR(set)                                                                                   \
        { #set, ggml_backend_cpu_reg_##set, ggml_cpu_init_##set, ggml_cpu_fp16_to_fp32_##set,                       \
          ggml_get_type_traits_cpu_##set, ggml_graph_plan_##set, ggml_graph_compute_##set }
EDGEKV_DECLARE(avx2)
EDGEKV_DECLARE(avx512)
#endif

namespace edgekv {

static const Processor processors[] = {
#ifdef EDGEKV_PORTABLE
    EDGEKV_PROCESSOR(avx512),
    EDGEKV_PROCESSOR(avx2),
#endif
    { nullptr, ggml_backend_cpu_reg, ggml_cpu_init, ggml_cpu_fp16_to_fp32, ggml_get_type_traits_cpu, ggml_graph_plan,
      ggml_graph_compute },
};

static const Processor & chosen_processor() {
    const Processor * found = processors;
    while (found->set != nullptr && std::strcmp(found->set, instructions()) != 0) {
        ++found;
    }
    return *found;
}

const Processor & processor() {
    static const Processor & here = chosen_processor();
    return here;
}

} // namespace edgekv

ggml_backend_reg_t edgekv_processor_reg() { return edgekv::processor().reg(); }
