#include "matmul/mul_mat.h"

#include "matmul/experts.h"
#include "matmul/products.h"

#include <algorithm>
#include <cstdint>

using namespace edgekv;

namespace {

constexpr size_t alignment = 64;

constexpr size_t aligned(size_t n) { return (n + alignment - 1) / alignment * alignment; }

bool has_experts(const ggml_tensor & product) { return product.op == GGML_OP_MUL_MAT_ID; }

// Columns that decide whose a product is. A block that chooses fewer columns than there are experts counts as one token: if few columns
// are left to ggml, to unpack an expert for one of them costs more than ggml's product with it.
int64_t n_deciding(const ggml_tensor & product) {
    if (!has_experts(product)) {
        return ggml_nrows(product.src[1]);
    }
    const ggml_tensor & ids = *product.src[2]; // (chosen, tokens)
    return ggml_nelements(&ids) < product.src[0]->ne[2] ? 1 : ids.ne[1];
}

// Where things lie in the workspace of a product: columns, their factors, what experts take of them, and a panel for each thread.
struct Layout {
    const TypeProducts & type;
    size_t               depth;
    size_t               n_columns;
    size_t               code_bytes;
    size_t               factor_bytes;
    size_t               expert_bytes;

    Layout(const ggml_tensor & product, edgekv_row_order order)
        : type(*products_of(product.src[0]->type, order, n_deciding(product))), depth(product.src[1]->ne[0]),
          n_columns(ggml_nrows(product.src[1])), code_bytes(aligned(n_columns * depth)),
          factor_bytes(aligned(n_columns * depth / type.block * sizeof(BlockFactor))),
          expert_bytes(has_experts(product) ? aligned(Experts::bytes(product)) : 0) {}

    size_t bytes(int n_threads) const { return alignment + code_bytes + factor_bytes + expert_bytes + n_threads * panel_bytes; }

    int8_t *      codes(void * workspace) const { return reinterpret_cast<int8_t *>(aligned(reinterpret_cast<uintptr_t>(workspace))); }
    BlockFactor * factors(void * workspace) const { return reinterpret_cast<BlockFactor *>(codes(workspace) + code_bytes); }
    void *        experts(void * workspace) const { return codes(workspace) + code_bytes + factor_bytes; }
    void *        panel(void * workspace, int thread) const {
        return codes(workspace) + code_bytes + factor_bytes + expert_bytes + thread * panel_bytes;
    }
};

const float * column_of(const ggml_tensor & columns, int64_t i) {
    const int64_t i1 = i % columns.ne[1], i2 = i / columns.ne[1] % columns.ne[2], i3 = i / columns.ne[1] / columns.ne[2];
    return reinterpret_cast<const float *>(static_cast<const char *>(columns.data) + i1 * columns.nb[1] + i2 * columns.nb[2] +
                                           i3 * columns.nb[3]);
}

// Rows [from, to) of every expert, each with its columns.
void multiply_by_experts(Product product, const TypeProducts & type, const Experts & experts, size_t expert_bytes, size_t from, size_t to,
                         void * panel) {
    for (int32_t expert = 0; expert < experts.n(); ++expert, product.weights += expert_bytes) {
        product.places    = experts.begin(expert);
        product.n_columns = experts.end(expert) - product.places;
        if (product.n_columns > 0) {
            type.multiply(product, from, to, panel);
        }
    }
}

} // namespace

bool edgekv_takes_mul_mat(const ggml_tensor * product, edgekv_row_order order) {
    const ggml_tensor & weights = *product->src[0];
    const ggml_tensor & columns = *product->src[1];
    const ggml_tensor * ids     = product->src[2];
    const bool          lies_so = order.n_rows > 1 || weights.extra == nullptr; // a note says that something has repacked them
    const bool          is_one  = weights.ne[2] == 1 && !has_experts(*product);
    const bool is_by_experts = has_experts(*product) && columns.ne[3] == 1 && (columns.ne[1] == 1 || columns.ne[1] == ids->ne[0]);
    return lies_so && (is_one || is_by_experts) && weights.ne[3] == 1 && columns.type == GGML_TYPE_F32 &&
           columns.nb[0] == sizeof(float) && ggml_is_contiguous(&weights) && ggml_is_contiguous(product) &&
           products_of(weights.type, order, n_deciding(*product)) != nullptr;
}

size_t edgekv_mul_mat_bytes(const ggml_tensor * product, edgekv_row_order order, int n_threads) {
    return Layout(*product, order).bytes(n_threads);
}

void edgekv_mul_mat_columns(const ggml_tensor * product, edgekv_row_order order, void * workspace, int thread, int n_threads) {
    const Layout  layout(*product, order);
    int8_t *      codes    = layout.codes(workspace);
    BlockFactor * factors  = layout.factors(workspace);
    const size_t  n_blocks = layout.depth / layout.type.block;
    const size_t  from = layout.n_columns * thread / n_threads, to = layout.n_columns * (thread + 1) / n_threads;
    for (size_t i = from; i < to; ++i) {
        layout.type.quantise(column_of(*product->src[1], i), layout.depth, codes + i * layout.depth, factors + i * n_blocks);
    }
    if (has_experts(*product) && thread == 0) {
        Experts(*product, layout.experts(workspace)).gather();
    }
}

void edgekv_mul_mat_rows(const ggml_tensor * product, edgekv_row_order order, void * workspace, int thread, int64_t from, int64_t to) {
    const Layout        layout(*product, order);
    const ggml_tensor & weights = *product->src[0];
    const Columns       columns = { layout.codes(workspace), layout.factors(workspace), layout.depth };
    void *              panel   = layout.panel(workspace, thread);
    const Product       task    = { static_cast<const char *>(weights.data), weights.nb[1], columns, layout.n_columns,
                                    static_cast<float *>(product->data), static_cast<size_t>(product->ne[0]) };
    if (has_experts(*product)) {
        const Experts experts(*product, layout.experts(workspace));
        multiply_by_experts(task, layout.type, experts, weights.nb[2], from, to, panel);
    } else {
        layout.type.multiply(task, from, to, panel);
    }
}
