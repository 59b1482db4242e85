// ggml's backend for processors: the one that the library was compiled for, or the fastest of several in a portable library.
#pragma once

#include "ggml-backend.h"
#include "ggml-cpu.h"

// For ggml's registry.
ggml_backend_reg_t edgekv_processor_reg();

namespace edgekv {

// What ggml's registry and edgekv call of it, by the names of ggml-cpu.h.
struct Processor {
    const char *                        set; // of instructions; NULL = any
    decltype(&ggml_backend_cpu_reg)     reg;
    decltype(&ggml_cpu_init)            init;
    decltype(&ggml_cpu_fp16_to_fp32)    fp16_to_fp32;
    decltype(&ggml_get_type_traits_cpu) type_traits;
    decltype(&ggml_graph_plan)          graph_plan;
    decltype(&ggml_graph_compute)       graph_compute;
};

const Processor & processor();

} // namespace edgekv
