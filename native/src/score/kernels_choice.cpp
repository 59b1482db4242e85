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

static const Kernels & chosen_by(const char * name) {
    const Kernels * fastest = nullptr;
    for (size_t i = 0; all_kernels[i] != nullptr; ++i) {
        if (all_kernels[i]->runs_here()) {
            fastest = fastest == nullptr ? all_kernels[i] : fastest;
            if (name != nullptr && std::strcmp(name, all_kernels[i]->name) == 0) {
                return *all_kernels[i];
            }
        }
    }
    return *fastest; // the last one runs everywhere
}

const Kernels & kernels() {
    static const Kernels & chosen = chosen_by(std::getenv("EDGEKV_INSTRUCTIONS"));
    return chosen;
}

} // namespace edgekv
