// Linear algebra of a rest, in double. Compiled once for each set of instructions, as kernels.cpp is.
#include "kernels/kernels.h"
#include "kernels/vectors.h"

#include <math.h>

namespace edgekv {

void EDGEKV_OF_SET(add_gram_)(const double * rows, size_t n, double * gram);

void EDGEKV_OF_SET(add_gram_)(const double * rows, size_t n, double * gram) {
    for (size_t i = 0; i < n; ++i) {
        double factors[n_gram_rows];
        for (size_t r = 0; r < n_gram_rows; ++r) {
            factors[r] = rows[r * n + i];
        }
        double * const sums = gram + i * n;
        for (size_t j = i; j < n; ++j) {
            double sum = sums[j];
#pragma GCC unroll 8
            for (size_t r = 0; r < n_gram_rows; ++r) {
                sum += factors[r] * rows[r * n + j];
            }
            sums[j] = sum;
        }
    }
}

void EDGEKV_OF_SET(solve_)(double * gram, size_t n, double * right);

// By Cholesky.
void EDGEKV_OF_SET(solve_)(double * gram, size_t n, double * right) {
    for (size_t k = 0; k < n; ++k) {
        double * const row   = gram + k * n;
        const double   scale = 1.0 / sqrt(row[k]);
        for (size_t j = k; j < n; ++j) {
            row[j] *= scale;
        }
        right[k] *= scale;
        for (size_t i = k + 1; i < n; ++i) {
            const double   factor = row[i];
            double * const lower  = gram + i * n;
            for (size_t j = i; j < n; ++j) {
                lower[j] -= factor * row[j];
            }
            right[i] -= factor * right[k];
        }
    }
    for (size_t i = n; i-- > 0;) {
        const double * const row = gram + i * n;
        double               sum = right[i];
        for (size_t j = i + 1; j < n; ++j) {
            sum -= row[j] * right[j];
        }
        right[i] = sum / row[i];
    }
}

} // namespace edgekv
