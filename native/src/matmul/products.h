// Products of a block's columns with quantised weights, compiled once for each set of instructions and chosen when the library is
// loaded. Weights stay as they lie: a thread unpacks some rows of them into whole numbers of a byte, for as many columns as there are.
#pragma once

#include "ggml.h"
#include "matmul/row_order.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

constexpr size_t n_panel_weights = 16 * 1024; // that are unpacked together: they and the columns beside them stay in the first cache

constexpr int64_t n_fewest_columns = 5; // where ggml multiplies fewer: more than a draft and the token before it

// What one block of a column is multiplied by, and what the sum of its numbers is for: weights have minima, or their codes an offset.
struct BlockFactor {
    float scale;
    union {
        float   sum;   // times the scale
        int32_t start; // minus that offset times the sum: what products of codes are added to; or the sums of 16 numbers and 16 more
    };
};

// Columns of activations as whole numbers of a byte, block by block.
struct Columns {
    const int8_t *      codes;   // (n, depth)
    const BlockFactor * factors; // (n, depth / block)
    size_t              depth;
};

// Where a column lies among the activations, and its products among the sums.
struct Place {
    int32_t column, out;
};

// Rows of weights times columns.
struct Product {
    const char * weights;    // row after row
    size_t       row_bytes;
    Columns      columns;
    size_t       n_columns;
    float *      out;        // column after column
    size_t       out_stride; // floats from one to the next
    const Place * places = nullptr; // of the columns; none: they are the first n_columns
};

// How weights of one type are multiplied.
struct TypeProducts {
    ggml_type        type;
    edgekv_row_order order;
    size_t           block; // elements that share a BlockFactor; depth is a multiple of the type's own block
    int64_t          fewest_columns; // fewer are left to ggml
    void (*quantise)(const float * column, size_t depth, int8_t * codes, BlockFactor * factors);
    void (*multiply)(const Product & product, size_t first_row, size_t end_row, void * workspace);
};

struct Products {
    const char *         name;  // the instructions: "avx512vnni", "avxvnni", "avx2", "i8mm" or "dotprod"
    bool (*runs_here)();        // whether this processor has them
    const TypeProducts * types; // the last one's multiply is NULL
};

// What `multiply` works in, from an address that is a multiple of 64 on.
constexpr size_t panel_bytes = n_panel_weights + (2 * (n_panel_weights / 16) + n_panel_weights / 256) * sizeof(float);

// How these weights are multiplied with so many columns here; NULL where that is left to ggml.
const TypeProducts * products_of(ggml_type type, edgekv_row_order order, int64_t n_columns);

// Columns, at most, that are multiplied as one alone is: more than those of ggml are multiplied in another way.
uint64_t most_alike(ggml_type type);

// The ones that serve, which are those that the scoring kernels were chosen for, or none; and others instead, for who compares them.
const Products * products();
void             use_products(const Products * others);

// All that this library holds, fastest first; NULL ends them.
extern const Products * const all_products[];

} // namespace edgekv
