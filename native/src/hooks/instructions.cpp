#include "hooks/instructions.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace edgekv {

static bool is(const char * a, const char * b) { return std::strcmp(a, b) == 0; }

bool runs_here(const char * set) {
#ifdef EDGEKV_X86_KERNELS
    if (is(set, "avx512") || is(set, "avx2")) {
        const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                          __builtin_cpu_supports("bmi2");
        const bool more = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        return avx2 && (more || is(set, "avx2"));
    }
#endif
    return is(set, "baseline");
}

static const char * chosen() {
    const char * named   = std::getenv("EDGEKV_INSTRUCTIONS");
    const char * fastest = nullptr;
    for (const char * set : { "avx512", "avx2", "baseline" }) {
        if (runs_here(set)) {
            fastest = fastest == nullptr ? set : fastest;
            if (named != nullptr && is(named, set)) {
                return set;
            }
        }
    }
    return fastest; // the last one runs everywhere
}

const char * instructions() {
    static const char * const set = chosen();
    return set;
}

} // namespace edgekv
