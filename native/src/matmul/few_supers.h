// Products of K types with few columns, as in few_columns.h: a block of 256 numbers at a time, whose parts have whole numbers for scales.
// All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/panel.h"

#include <type_traits>

namespace edgekv {

namespace {

// Sums of two products of bytes in 16 bits: codes of at most six bits, without a sign, times activations.
inline __m256i two_products(__m256i codes, const int8_t * activations) {
    return _mm256_maddubs_epi16(codes, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(activations)));
}

// The sums, or the starts, of 8 parts, in the order 0, 1, 4, 5, 2, 3, 6, 7.
inline __m256 second_members(const BlockFactor * factors) {
    const auto * floats = reinterpret_cast<const float *>(factors);
    return _mm256_shuffle_ps(_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8), 0xDD);
}
inline __m256i in_their_order(__m256i eight) { return _mm256_permutevar8x32_epi32(eight, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)); }

// ---- rows that lie one after the other ----

// Scales of a block's parts, and what is added for its minima or its offset. For Q4_K and Q5_K, which begin alike.
template <typename Super> struct FewMinima {
    using Block = Super;

    uint8_t scales[8];
    __m256  minima; // in the order of second_members
    float   delta;

    explicit FewMinima(const Block & block) {
        const __m128i bytes = sixes_of(block.scales);
        std::memcpy(scales, &bytes, sizeof(scales));
        int32_t two;
        std::memcpy(&two, &block, sizeof(two));
        const __m128 scale_and_minimum = _mm_cvtph_ps(_mm_cvtsi32_si128(two));
        delta  = _mm_cvtss_f32(scale_and_minimum);
        minima = _mm256_mul_ps(_mm256_cvtepi32_ps(in_their_order(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)))),
                               _mm256_set1_ps(-_mm_cvtss_f32(_mm_movehdup_ps(scale_and_minimum))));
    }

    static __m256i codes(const Block & block, size_t part) {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.qs) + part / 2);
        const __m256i low  = part % 2 == 0 ? low_half(both) : high_half(both);
        if constexpr (std::is_same_v<Block, block_q5_K>) {
            const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.qh));
            return _mm256_or_si256(low, upper_bits<1>(bits, static_cast<int>(part)));
        }
        return low;
    }

    __m256i scale(size_t part) const { return _mm256_set1_epi16(scales[part]); }

    // Added to the sums of a block: whole numbers before they are scaled, and floats after it.
    __m256i start(const BlockFactor *) const { return _mm256_setzero_si256(); }
    __m256  rest(const BlockFactor * factors) const { return _mm256_mul_ps(minima, second_members(factors)); }
};

struct FewQ6_K {
    using Block = block_q6_K;

    __m256i whole[2]; // scales as 8 numbers each, in the order of second_members
    __m256i pairs;    // scales as 16 numbers
    float   delta;

    explicit FewQ6_K(const Block & block) {
        const __m128i scales = load16(block.scales);
        pairs    = _mm256_cvtepi8_epi16(scales);
        whole[0] = in_their_order(_mm256_cvtepi8_epi32(scales));
        whole[1] = in_their_order(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(scales, scales)));
        delta    = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(block.d)));
    }

    static __m256i codes(const Block & block, size_t part) {
        const auto *  lower = reinterpret_cast<const __m256i *>(block.ql) + part / 4 * 2 + part % 2;
        const auto *  upper = reinterpret_cast<const __m256i *>(block.qh) + part / 4;
        const __m256i both = _mm256_loadu_si256(lower), bits = _mm256_loadu_si256(upper);
        return _mm256_or_si256(part % 4 < 2 ? low_half(both) : high_half(both), upper_bits<2>(bits, static_cast<int>(2 * (part % 4))));
    }

    // The scale of 16 codes in each half, of 8 scales that stand in both.
    __m256i scale(size_t part) const {
        const __m256i here = part < 4 ? _mm256_permute4x64_epi64(pairs, 0x44) : _mm256_permute4x64_epi64(pairs, 0xEE);
        const char    at   = static_cast<char>(4 * (part % 4));
        const __m256i byte = _mm256_setr_m128i(_mm_set1_epi16(static_cast<int16_t>(at | (at + 1) << 8)),
                                               _mm_set1_epi16(static_cast<int16_t>((at + 2) | (at + 3) << 8)));
        return _mm256_shuffle_epi8(here, byte);
    }

    __m256i start(const BlockFactor * factors) const {
        if constexpr (Q6_K::offset == 0) {
            return _mm256_setzero_si256();
        }
        const __m256i first = _mm256_mullo_epi32(whole[0], _mm256_castps_si256(second_members(factors)));
        return _mm256_add_epi32(first, _mm256_mullo_epi32(whole[1], _mm256_castps_si256(second_members(factors + 8))));
    }

    __m256 rest(const BlockFactor * factors) const {
        if constexpr (Q6_K::offset != 0) {
            return _mm256_setzero_ps();
        }
        const __m256 first  = _mm256_mul_ps(_mm256_cvtepi32_ps(whole[0]), second_members(factors));
        const __m256 second = _mm256_mul_ps(_mm256_cvtepi32_ps(whole[1]), second_members(factors + 8));
        return _mm256_mul_ps(_mm256_add_ps(first, second), _mm256_set1_ps(-32.0f * delta));
    }
};

template <typename Few, typename Weights> struct FewSupers {
    template <size_t n_columns> static void multiply(const Product & product, size_t row, size_t end_row) {
        for (; row < end_row; ++row) {
            multiply_row<n_columns>(product, row);
        }
    }

  private:
    template <size_t n_columns> static void multiply_row(const Product & product, size_t row) {
        constexpr size_t n_parts  = n_super / n_block;
        const Columns &  columns  = product.columns;
        const size_t     n_blocks = columns.depth / n_super, n_factors = columns.depth / Weights::block;
        __m256           sums[n_columns] = {};
        for (size_t i = 0; i < n_blocks; ++i) {
            const auto & block = *block_of<typename Few::Block>(product.weights + row * product.row_bytes, i);
            for (size_t line = 0; line < sizeof(block); line += 64) { // rows are short: no stream is found
                _mm_prefetch(reinterpret_cast<const char *>(&block) + 4 * product.row_bytes + line, _MM_HINT_T0);
            }
            const Few few(block);
            __m256i   whole[n_columns];
            for (size_t c = 0; c < n_columns; ++c) {
                whole[c] = few.start(columns.factors + c * n_factors + i * (n_super / Weights::block));
            }
#pragma GCC unroll 8
            for (size_t part = 0; part < n_parts; ++part) {
                const __m256i codes = Few::codes(block, part), scale = few.scale(part);
#pragma GCC unroll 8
                for (size_t c = 0; c < n_columns; ++c) {
                    const int8_t * activations = columns.codes + c * columns.depth + i * n_super + part * n_block;
                    whole[c] = _mm256_add_epi32(whole[c], _mm256_madd_epi16(two_products(codes, activations), scale));
                }
            }
            for (size_t c = 0; c < n_columns; ++c) {
                const BlockFactor * factors = columns.factors + c * n_factors + i * (n_super / Weights::block);
                sums[c] = _mm256_add_ps(sums[c], few.rest(factors));
                sums[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[c]), _mm256_set1_ps(few.delta * factors->scale), sums[c]);
            }
        }
        for (size_t c = 0; c < n_columns; ++c) {
            product.out[c * product.out_stride + row] = sum_of(sums[c]);
        }
    }
};

// ---- eight rows side by side, eight bytes of each in turn ----

// A register holds 8 codes of each of four rows; the sums of a row are those of two neighbouring lanes.
struct FewQ4_Kx8 {
    template <size_t n_columns> static void multiply(const Product & product, size_t row, size_t end_row) {
        for (; row < end_row; row += 8) {
            multiply_rows<n_columns>(product, row);
        }
    }

  private:
    static __m256i eight(const int8_t * activations) {
        int64_t bytes;
        std::memcpy(&bytes, activations, sizeof(bytes));
        return _mm256_set1_epi64x(bytes);
    }

    // The sums of a part in 16 bits: four times two products of codes of four bits fit.
    template <typename Codes> static __m256i sums_of(const Codes & codes, const int8_t * activations) {
        const __m256i first  = _mm256_add_epi16(_mm256_maddubs_epi16(codes(0), eight(activations)),
                                                _mm256_maddubs_epi16(codes(1), eight(activations + 8)));
        const __m256i second = _mm256_add_epi16(_mm256_maddubs_epi16(codes(2), eight(activations + 16)),
                                                _mm256_maddubs_epi16(codes(3), eight(activations + 24)));
        return _mm256_add_epi16(first, second);
    }

    template <size_t n_columns> static void multiply_rows(const Product & product, size_t row) {
        const Columns & columns  = product.columns;
        const size_t    n_blocks = columns.depth / n_super, n_parts = n_super / n_block;
        const __m256i   of_first = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2, -1, 2, -1, 2, -1, 3, -1,
                                                    3, -1, 3, -1, 3, -1); // scales of four rows, for 16 bits
        const __m256i   of_second = _mm256_add_epi8(of_first, _mm256_set1_epi16(4));
        __m256          sums[n_columns][2] = {}, least[n_columns] = {};
        for (size_t i = 0; i < n_blocks; ++i) {
            const auto & block = *block_of<Q4_Kx8::Block>(product.weights + row * product.row_bytes, i);
            __m256i      scales[n_parts][2];
            __m256       minima[n_columns] = {};
            for (size_t part = 0; part < n_parts; ++part) {
                const __m128i bytes = sixes_of(block.sixes[part]);
                const __m256i twice = _mm256_broadcastsi128_si256(bytes);
                scales[part][0]     = _mm256_shuffle_epi8(twice, of_first);
                scales[part][1]     = _mm256_shuffle_epi8(twice, of_second);
                const __m256 minimum = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
                for (size_t c = 0; c < n_columns; ++c) {
                    const float sum = columns.factors[(c * n_blocks + i) * n_parts + part].sum;
                    minima[c]       = _mm256_fmadd_ps(minimum, _mm256_set1_ps(sum), minima[c]);
                }
            }
            __m256i whole[n_columns][2] = {};
            for (size_t pair = 0; pair < n_parts / 2; ++pair) {
#pragma GCC unroll 2
                for (size_t half = 0; half < 2; ++half) {
                    __m256i both[4];
                    for (size_t group = 0; group < 4; ++group) {
                        both[group] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.codes) + 2 * (4 * pair + group) + half);
                    }
#pragma GCC unroll 8
                    for (size_t c = 0; c < n_columns; ++c) {
                        const int8_t * activations = columns.codes + c * columns.depth + i * n_super + 2 * pair * n_block;
                        const __m256i  low  = sums_of([&](size_t group) { return low_half(both[group]); }, activations);
                        const __m256i  high = sums_of([&](size_t group) { return high_half(both[group]); }, activations + n_block);
                        whole[c][half]      = _mm256_add_epi32(whole[c][half], _mm256_madd_epi16(low, scales[2 * pair][half]));
                        whole[c][half]      = _mm256_add_epi32(whole[c][half], _mm256_madd_epi16(high, scales[2 * pair + 1][half]));
                    }
                }
            }
            const __m256 delta = _mm256_cvtph_ps(load16(block.deltas)), of_minima = _mm256_cvtph_ps(load16(block.least));
            const __m256 deltas[] = { _mm256_permutevar8x32_ps(delta, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
                                      _mm256_permutevar8x32_ps(delta, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)) };
            for (size_t c = 0; c < n_columns; ++c) {
                const __m256 scale = _mm256_set1_ps(columns.factors[(c * n_blocks + i) * n_parts].scale);
                for (size_t half = 0; half < 2; ++half) {
                    sums[c][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[c][half]), _mm256_mul_ps(deltas[half], scale), sums[c][half]);
                }
                least[c] = _mm256_fmadd_ps(minima[c], of_minima, least[c]);
            }
        }
        for (size_t c = 0; c < n_columns; ++c) {
            const __m256d rows = _mm256_castps_pd(_mm256_hadd_ps(sums[c][0], sums[c][1])); // 0, 1, 4, 5, 2, 3, 6, 7
            const __m256  sum  = _mm256_castpd_ps(_mm256_permute4x64_pd(rows, 0xD8));
            _mm256_storeu_ps(product.out + c * product.out_stride + row, _mm256_sub_ps(sum, least[c]));
        }
    }
};

} // namespace

} // namespace edgekv
