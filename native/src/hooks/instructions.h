// The set of instructions that kernels are compiled for, and ggml's backend where the library holds several.
#pragma once

namespace edgekv {

// "avx512" or "avx2" on x86, "i8mm" or "dotprod" on Arm, or "baseline": the one that EDGEKV_INSTRUCTIONS names, if this library
// and this processor have it; else the fastest that both have.
const char * instructions();

// Whether this processor has all instructions of a set.
bool runs_here(const char * set);

} // namespace edgekv
