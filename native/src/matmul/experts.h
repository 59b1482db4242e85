// The columns that each expert multiplies in a product by experts (GGML_OP_MUL_MAT_ID).
#pragma once

#include "ggml.h"
#include "matmul/products.h"

namespace edgekv {

class Experts {
  public:
    // Bytes that they take of a product's workspace.
    static size_t bytes(const ggml_tensor & product);

    // memory: so many bytes of it, for integers
    Experts(const ggml_tensor & product, void * memory);

    // Sort the columns by their experts, in the order of tokens.
    void gather() const;

    int32_t n() const { return static_cast<int32_t>(product_.src[0]->ne[2]); }

    // An expert's columns.
    const Place * begin(int32_t expert) const { return places_ + (expert == 0 ? 0 : ends_[expert - 1]); }
    const Place * end(int32_t expert) const { return places_ + ends_[expert]; }

  private:
    // Call use(expert, place) for all columns.
    template <typename Use> void each(const Use & use) const;

    const ggml_tensor & product_;
    Place *             places_;
    int32_t *           ends_; // of each expert's places
};

} // namespace edgekv
