// The columns of a product in tiles, which a panel meets one after the other. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/products.h"

namespace edgekv {

namespace {

template <size_t n_columns> struct Tile {
    const int8_t *      codes[n_columns];
    const BlockFactor * factors[n_columns];
    float *             out[n_columns];
};

// Call multiply(tile) for the columns from `first` on, in tiles of n_columns; the rest in a smaller one. Tiles begin at element k of the
// columns and at row `row` of the sums; `block` elements share a factor.
template <size_t n_columns, typename Multiply>
void each_tile(const Product & product, size_t block, size_t row, size_t k, const Multiply & multiply, size_t first = 0) {
    const Columns & columns  = product.columns;
    const size_t    n_blocks = columns.depth / block;
    for (; first + n_columns <= product.n_columns; first += n_columns) {
        Tile<n_columns> tile;
        const auto      put = [&](size_t c, size_t column, size_t out) {
            tile.codes[c]   = columns.codes + column * columns.depth + k;
            tile.factors[c] = columns.factors + column * n_blocks + k / block;
            tile.out[c]     = product.out + out * product.out_stride + row;
        };
        if (product.places == nullptr) {
            for (size_t c = 0; c < n_columns; ++c) {
                put(c, first + c, first + c);
            }
        } else {
            for (size_t c = 0; c < n_columns; ++c) {
                put(c, product.places[first + c].column, product.places[first + c].out);
            }
        }
        multiply(tile);
    }
    if constexpr (n_columns > 1) {
        each_tile<n_columns - 1>(product, block, row, k, multiply, first);
    }
}

} // namespace

} // namespace edgekv
