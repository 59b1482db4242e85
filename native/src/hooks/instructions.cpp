#include "hooks/instructions.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#if defined(EDGEKV_ARM_PRODUCTS)
#    if defined(__linux__)
#        include <sys/auxv.h>
#    elif defined(__APPLE__)
#        include <sys/sysctl.h>
#    elif defined(_WIN32)
#        include <windows.h>
#    endif
#endif

namespace edgekv {

static bool is(const char * a, const char * b) { return std::strcmp(a, b) == 0; }

#if defined(EDGEKV_ARM_PRODUCTS)
// What the operating system says; the numbers are those of its interface, which older headers do not name.
#    if defined(__linux__)
static bool has_dotprod() { return (getauxval(AT_HWCAP) & 1ul << 20) != 0; }
static bool has_i8mm() { return (getauxval(AT_HWCAP2) & 1ul << 13) != 0; }
#    elif defined(__APPLE__)
static bool has(const char * feature) {
    int    value = 0;
    size_t size  = sizeof(value);
    return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
static bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
static bool has_i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }
#    elif defined(_WIN32)
static bool has_dotprod() { return IsProcessorFeaturePresent(43) != 0; }
static bool has_i8mm() { return IsProcessorFeaturePresent(66) != 0; }
#    else
static bool has_dotprod() { return false; }
static bool has_i8mm() { return false; }
#    endif
#endif

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
#ifdef EDGEKV_ARM_PRODUCTS
    if (is(set, "i8mm") || is(set, "dotprod")) {
        return has_dotprod() && (has_i8mm() || is(set, "dotprod"));
    }
#endif
    return is(set, "baseline");
}

static const char * chosen() {
    const char * named   = std::getenv("EDGEKV_INSTRUCTIONS");
    const char * fastest = nullptr;
    for (const char * set : { "avx512", "avx2", "i8mm", "dotprod", "baseline" }) {
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
