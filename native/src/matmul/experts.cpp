#include "matmul/experts.h"

#include <algorithm>
#include <utility>

namespace edgekv {

static size_t n_places(const ggml_tensor & product) { return static_cast<size_t>(ggml_nelements(product.src[2])); }

size_t Experts::bytes(const ggml_tensor & product) {
    return n_places(product) * sizeof(Place) + static_cast<size_t>(product.src[0]->ne[2]) * sizeof(int32_t);
}

Experts::Experts(const ggml_tensor & product, void * memory)
    : product_(product), places_(static_cast<Place *>(memory)), ends_(reinterpret_cast<int32_t *>(places_ + n_places(product))) {}

template <typename Use> void Experts::each(const Use & use) const {
    const ggml_tensor & ids       = *product_.src[2]; // (chosen, tokens)
    const int64_t       n_columns = product_.src[1]->ne[1]; // of a token: one for all experts, or one for each chosen one
    for (int64_t token = 0; token < ids.ne[1]; ++token) {
        for (int64_t i = 0; i < ids.ne[0]; ++i) {
            const auto * expert = reinterpret_cast<const int32_t *>(static_cast<const char *>(ids.data) + token * ids.nb[1] + i * ids.nb[0]);
            use(*expert, Place{ static_cast<int32_t>(token * n_columns + i % n_columns), static_cast<int32_t>(token * ids.ne[0] + i) });
        }
    }
}

void Experts::gather() const {
    std::fill_n(ends_, n(), 0);
    each([&](int32_t expert, const Place &) { ++ends_[expert]; });
    int32_t n_before = 0;
    for (int32_t expert = 0; expert < n(); ++expert) {
        n_before += std::exchange(ends_[expert], n_before);
    }
    each([&](int32_t expert, const Place & place) { places_[ends_[expert]++] = place; });
}

} // namespace edgekv
