#include "hooks/instructions.h"
#include "kernels/kernels.h"

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

// The ones of a set, or the last ones: Arm's sets matter to products alone.
static const Kernels & of(const char * set) {
    const Kernels * const * found = all_kernels;
    while (std::strcmp((*found)->name, set) != 0 && found[1] != nullptr) {
        ++found;
    }
    return **found;
}

const Kernels & kernels() {
    static const Kernels & here = of(instructions());
    return here;
}

} // namespace edgekv
