// Products of a matrix with panels, each of whose columns is a lane. All of it is each source's own (vectors.h).
#pragma once

#include "kernels/vectors.h"

#include <math.h>

namespace edgekv {

namespace {

// Element (row, k) is at data[row * row_step + k * step].
struct Matrix {
    const float * data;
    size_t        row_step;
    size_t        step;
};

// Of n rows with panels that lie one after another: vector p is the p-th of the first panel's row, then of the second's.
template <size_t n, size_t n_panels = 1> using Products = Vector[n][n_panels * n_parts];

// sums[r][p] += rows [0, n) times vector p of the panels' rows, of every n_chains-th element from `first` on. With row_step known to the
// compiler, one register holds all addresses.
template <size_t n, size_t row_step, size_t n_panels, size_t n_chains>
inline void multiply_rows(const Matrix & rows, const float * panels, size_t depth, size_t first, Products<n, n_panels> & sums) {
    const size_t step_of_rows = row_step > 0 ? row_step : rows.row_step;
    for (size_t k = first; k < depth; k += n_chains) {
        Vector column[n_panels * n_parts];
        for (size_t p = 0; p < n_panels * n_parts; ++p) {
            column[p] = load(panels + (p / n_parts * depth + k) * n_lanes + p % n_parts * width);
        }
#pragma GCC unroll 16
        for (size_t r = 0; r < n; ++r) {
            const Vector factor = all(rows.data[r * step_of_rows + k * rows.step]);
#pragma GCC unroll 4
            for (size_t p = 0; p < n_panels * n_parts; ++p) {
                sums[r][p] = plus_product(sums[r][p], factor, column[p]);
            }
        }
    }
}

// Call f(row, its products) for each row from `first` on, n rows at once; the rest in smaller steps. A product is the sum of n_chains
// sums, each of every n_chains-th element, as added() adds them up.
template <size_t n, size_t row_step = 0, size_t n_panels = 1, size_t n_chains = 1, typename F>
inline void each_product(const Matrix & rows, size_t n_rows, const float * panels, size_t depth, F f, size_t first = 0) {
    for (; first + n <= n_rows; first += n) {
        const Matrix next = { rows.data + first * rows.row_step, rows.row_step, rows.step };
        Products<n, n_panels> chains[n_chains];
#pragma GCC unroll 4
        for (size_t i = 0; i < n_chains; ++i) {
            Products<n, n_panels> sums = {};
            multiply_rows<n, row_step, n_panels, n_chains>(next, panels, depth, i, sums);
            std::memcpy(chains[i], sums, sizeof(sums));
        }
        for (size_t r = 0; r < n; ++r) {
            for (size_t p = 0; p < n_panels * n_parts; ++p) {
                Vector parts[n_chains];
                for (size_t i = 0; i < n_chains; ++i) {
                    parts[i] = chains[i][r][p];
                }
                chains[0][r][p] = added(parts);
            }
            f(first + r, chains[0][r]);
        }
    }
    if constexpr (n > 1) {
        each_product<(n > 4 ? 4 : 1), row_step, n_panels, n_chains>(rows, n_rows, panels, depth, f, first);
    }
}

// Cap the logits of a cell; 0 = none. One that is not finite becomes NaN, since the cap would make a number of it.
template <size_t n> inline void cap(Vector (&logits)[n], float softcap) {
    if (softcap > 0.0f) {
        float values[n * width];
        std::memcpy(values, logits, sizeof(values));
        for (float & value : values) {
            value = (bits_of<int32_t>(value) & 0x7FFFFFFF) < infinity ? softcap * tanhf(value / softcap) : NAN;
        }
        std::memcpy(logits, values, sizeof(values));
    }
}

} // namespace

} // namespace edgekv
