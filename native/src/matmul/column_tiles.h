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

// Call multiply(tile) with the tile of `size` columns, at most n_columns, that begins with column `first`.
template <size_t n_columns, typename Multiply>
void with_tile(const Product & product, size_t block, size_t row, size_t k, const Multiply & multiply, size_t first, size_t size) {
    if constexpr (n_columns > 1) {
        if (size < n_columns) {
            with_tile<n_columns - 1>(product, block, row, k, multiply, first, size);
            return;
        }
    }
    const Columns & columns  = product.columns;
    const size_t    n_blocks = columns.depth / block;
    Tile<n_columns> tile;
    for (size_t c = 0; c < n_columns; ++c) {
        const auto  i     = static_cast<int32_t>(first + c);
        const Place place = product.places != nullptr ? product.places[i] : Place{ i, i };
        tile.codes[c]     = columns.codes + place.column * columns.depth + k;
        tile.factors[c]   = columns.factors + place.column * n_blocks + k / block;
        tile.out[c]       = product.out + place.out * product.out_stride + row;
    }
    multiply(tile);
}

// Call multiply(tile) for all columns, in tiles of n_columns or fewer, which are as equal as can be: small ones wait for their sums.
// Tiles begin at element k of the columns and at row `row` of the sums; `block` elements share a factor.
template <size_t n_columns, typename Multiply>
void each_tile(const Product & product, size_t block, size_t row, size_t k, const Multiply & multiply) {
    size_t n_tiles = (product.n_columns + n_columns - 1) / n_columns;
    for (size_t first = 0; n_tiles > 0; --n_tiles) {
        const size_t size = (product.n_columns - first + n_tiles - 1) / n_tiles;
        with_tile<n_columns>(product, block, row, k, multiply, first, size);
        first += size;
    }
}

} // namespace

} // namespace edgekv
