#include "matmul/products.h"

#include "kernels/kernels.h"

#include <atomic>
#include <cstring>

namespace edgekv {

#ifdef EDGEKV_X86_KERNELS
extern const Products products_avx2;
#    ifdef EDGEKV_X86_DOT4
extern const Products products_avx512vnni;
extern const Products products_avxvnni;
#    endif
#endif

const Products * const all_products[] = {
#ifdef EDGEKV_X86_KERNELS
#    ifdef EDGEKV_X86_DOT4
    &products_avx512vnni,
    &products_avxvnni,
#    endif
    &products_avx2,
#endif
    nullptr,
};

// Instructions that scoring was told to do without are not used here either.
static bool serves(const Products & candidate) {
    const char * scoring = kernels().name;
    if (std::strcmp(scoring, "baseline") == 0 || (std::strcmp(scoring, "avx2") == 0 && std::strstr(candidate.name, "512") != nullptr)) {
        return false;
    }
    return candidate.runs_here();
}

static const Products * fastest() {
    const Products * const * found = all_products;
    while (*found != nullptr && !serves(**found)) {
        ++found;
    }
    return *found;
}

static std::atomic<const Products *> & in_use() {
    static std::atomic<const Products *> chosen(fastest());
    return chosen;
}

const Products * products() { return in_use().load(std::memory_order_relaxed); }

void use_products(const Products * others) { in_use().store(others, std::memory_order_relaxed); }

const TypeProducts * products_of(ggml_type type, bool interleaved) {
    const Products * chosen = products();
    if (chosen != nullptr) {
        for (const TypeProducts * found = chosen->types; found->multiply != nullptr; ++found) {
            if (found->type == type && found->interleaved == interleaved) {
                return found;
            }
        }
    }
    return nullptr;
}

} // namespace edgekv
