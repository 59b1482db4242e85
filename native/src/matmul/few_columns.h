// Products with few columns: rows are read once, at the memory's speed, and unpacked in registers, a block at a time. A column's sums
// have one order, however many columns and rows there are. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/panel.h"

#include <algorithm>

namespace edgekv {

namespace {

// Sums of four products of bytes in each lane: codes of at most five bits, without a sign, times activations.
inline __m256i dots(__m256i codes, __m256i activations) {
#if defined(EDGEKV_DOT4) && defined(__AVX512VNNI__)
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, activations);
#elif defined(EDGEKV_DOT4) && defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), codes, activations);
#else
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, activations), _mm256_set1_epi16(1));
#endif
}

inline __m256i halves_of_bytes(const uint8_t * bytes) {
    const __m128i both = load16(bytes);
    return low_half(_mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1));
}

// The 32 codes of a block, in the order of the activations.
inline __m256i codes_of(const block_q4_1 & block) { return halves_of_bytes(block.qs); }

inline __m256i codes_of(const block_q5_1 & block) {
    int32_t bits;
    std::memcpy(&bits, block.qh, sizeof(bits));
    const __m256i byte  = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i which = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i found = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte), which), which);
    return _mm256_or_si256(halves_of_bytes(block.qs), _mm256_and_si256(found, _mm256_set1_epi8(16)));
}

inline float sum_of(__m256 values) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    const __m128 two  = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// n_rows rows from `row` on times n_columns columns. A block begins with its scale and its minimum, as two halves of a float.
template <typename Block, size_t n_rows, size_t n_columns> inline void multiply_few_rows(const Product & product, size_t row) {
    const Columns & columns  = product.columns;
    const size_t    n_blocks = columns.depth / n_block;
    __m256          sums[n_rows][n_columns];
    __m128          scaled[n_rows][n_columns]; // in the second lane minima times sums of activations; the first is of no use
    for (size_t r = 0; r < n_rows; ++r) {
        for (size_t c = 0; c < n_columns; ++c) {
            sums[r][c]   = _mm256_setzero_ps();
            scaled[r][c] = _mm_setzero_ps();
        }
    }
    for (size_t i = 0; i < n_blocks; ++i) {
#pragma GCC unroll 4
        for (size_t r = 0; r < n_rows; ++r) {
            const Block & block = *block_of<Block>(product.weights + (row + r) * product.row_bytes, i);
            _mm_prefetch(reinterpret_cast<const char *>(&block) + 8 * product.row_bytes, _MM_HINT_T0); // rows are short: no stream is found
            int32_t two;
            std::memcpy(&two, &block, sizeof(two));
            const __m128  scale_and_minimum = _mm_cvtph_ps(_mm_cvtsi32_si128(two));
            const __m256i codes             = codes_of(block);
#pragma GCC unroll 8
            for (size_t c = 0; c < n_columns; ++c) {
                const int8_t * activations = columns.codes + c * columns.depth + i * n_block;
                double         factor; // a scale, and the sum of activations times it
                std::memcpy(&factor, columns.factors + c * n_blocks + i, sizeof(factor));
                const __m128  factors  = _mm_mul_ps(scale_and_minimum, _mm_castpd_ps(_mm_set_sd(factor)));
                const __m256i products = dots(codes, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(activations)));
                scaled[r][c]           = _mm_add_ps(scaled[r][c], factors);
                sums[r][c]             = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), _mm256_broadcastss_ps(factors), sums[r][c]);
            }
        }
    }
    for (size_t r = 0; r < n_rows; ++r) {
        for (size_t c = 0; c < n_columns; ++c) {
            product.out[c * product.out_stride + row + r] = sum_of(sums[r][c]) + _mm_cvtss_f32(_mm_movehdup_ps(scaled[r][c]));
        }
    }
}

// Types with blocks of 32.
template <typename Block> struct FewSimple {
    template <size_t n_columns> static void multiply(const Product & product, size_t row, size_t end_row) {
        constexpr size_t n_rows = n_columns <= 2 ? 4 : n_columns <= 4 ? 2 : 1; // as many as leave their sums in registers
        for (; row + n_rows <= end_row; row += n_rows) {
            multiply_few_rows<Block, n_rows, n_columns>(product, row);
        }
        for (; row < end_row; ++row) {
            multiply_few_rows<Block, 1, n_columns>(product, row);
        }
    }
};

template <typename Few, size_t n_columns = n_fewest_columns - 1> void multiply_few(const Product & product, size_t row, size_t end_row) {
    if (product.n_columns == n_columns) {
        Few::template multiply<n_columns>(product, row, end_row);
    } else if constexpr (n_columns > 1) {
        multiply_few<Few, n_columns - 1>(product, row, end_row);
    }
}

} // namespace

} // namespace edgekv
