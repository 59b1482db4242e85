#include "score/kernels.h"

#include <cstdlib>
#include <cstring>

namespace edgekv {

#ifdef EDGEKV_X86_KERNELS
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx2;
#endif
extern const Kernels kernels_baseline;

const Kernels * const all_kernels[] = {
#ifdef EDGEKV_X86_KERNELS
    &kernels_avx512,
    &kernels_avx2,
#endif
    &kernels_baseline,
    nullptr,
};

const Kernels & kernels() {
    static const Kernels & chosen = []() -> const Kernels & {
        const char *    wanted = std::getenv("EDGEKV_INSTRUCTIONS");
        const Kernels * found  = &kernels_baseline;
        for (size_t i = 0; all_kernels[i] != nullptr; ++i) {
            const Kernels & one = *all_kernels[i];
            if (one.runs_here() && (wanted == nullptr || std::strcmp(wanted, one.name) == 0)) {
                found = &one;
                break;
            }
        }
        return *found;
    }();
    return chosen;
}

} // namespace edgekv
