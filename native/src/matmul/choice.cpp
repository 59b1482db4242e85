#include "matmul/products.h"

#include "hooks/instructions.h"

#include <algorithm>
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
#ifdef EDGEKV_ARM_PRODUCTS
extern const Products products_i8mm;
extern const Products products_dotprod;
#endif

const Products * const all_products[] = {
#ifdef EDGEKV_X86_KERNELS
#    ifdef EDGEKV_X86_DOT4
    &products_avx512vnni,
    &products_avxvnni,
#    endif
    &products_avx2,
#endif
#ifdef EDGEKV_ARM_PRODUCTS
    &products_i8mm,
    &products_dotprod,
#endif
    nullptr,
};

// Columns that ggml multiplies one by one with rows that it repacked. It adds up four otherwise.
constexpr int64_t n_few_by_ggml = 3;

// Instructions that the library was told to do without are not used here either.
static bool serves(const Products & candidate) {
    const char * set = instructions();
    if (std::strcmp(set, "baseline") == 0 || (std::strcmp(set, "avx2") == 0 && std::strstr(candidate.name, "512") != nullptr) ||
        (std::strcmp(set, "dotprod") == 0 && std::strcmp(candidate.name, "i8mm") == 0)) {
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

const TypeProducts * products_of(ggml_type type, edgekv_row_order order, int64_t n_columns) {
    const Products * chosen = products();
    if (chosen != nullptr) {
        for (const TypeProducts * found = chosen->types; found->multiply != nullptr; ++found) {
            if (found->type == type && found->order.n_rows == order.n_rows && found->order.n_bytes == order.n_bytes) {
                return n_columns >= found->fewest_columns ? found : nullptr;
            }
        }
    }
    return nullptr;
}

uint64_t most_alike(ggml_type type) {
    uint64_t         most   = UINT64_MAX;
    const Products * chosen = products();
    for (const TypeProducts * it = chosen != nullptr ? chosen->types : nullptr; it != nullptr && it->multiply != nullptr; ++it) {
        if (it->type == type && it->fewest_columns > 1) {
            const int64_t n_few = it->fewest_columns - 1;
            most = static_cast<uint64_t>(it->order.n_rows > 1 ? std::min(n_few, n_few_by_ggml) : n_few);
        }
    }
    return most;
}

} // namespace edgekv
