// Products of Q6_K with few columns, row by row: rows are unpacked in registers at the memory's speed, which panels of their many parts miss.
// Sums over a block of 256 are whole numbers in panels too, so both round alike. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/column_tiles.h"
#include "matmul/panel.h"

namespace edgekv {

namespace {

// The sums of two parts of 16 numbers stand in lanes 0 to 3 and 4 to 7; starts stand in every lane in which their scale does.
struct RowsQ6_K {
    __m256i whole[2]; // scales as 8 numbers each, in the order of second_members
    __m256i pairs;    // scales as 16 numbers
    float   delta;

    explicit RowsQ6_K(const block_q6_K & block) {
        const __m128i scales = load16(block.scales);
        pairs    = _mm256_cvtepi8_epi16(scales);
        whole[0] = in_their_order(_mm256_cvtepi8_epi32(scales));
        whole[1] = in_their_order(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(scales, scales)));
        delta    = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(block.d)));
    }

    // 32 codes.
    static __m256i codes(const block_q6_K & block, size_t part) {
        const auto *  lower = reinterpret_cast<const __m256i *>(block.ql) + part / 4 * 2 + part % 2;
        const auto *  upper = reinterpret_cast<const __m256i *>(block.qh) + part / 4;
        const __m256i both = _mm256_loadu_si256(lower), bits = _mm256_loadu_si256(upper);
        const __m256i low  = _mm256_and_si256(part % 4 < 2 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
        const __m256i high = part % 4 < 2 ? _mm256_slli_epi16(bits, 4 - static_cast<int>(2 * (part % 4)))
                                          : _mm256_srli_epi16(bits, static_cast<int>(2 * (part % 4)) - 4);
        return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    }

    // The scale of 16 codes in each half, of 8 scales that stand in both.
    __m256i scale(size_t part) const {
        const __m256i here = part < 4 ? _mm256_permute4x64_epi64(pairs, 0x44) : _mm256_permute4x64_epi64(pairs, 0xEE);
        const char    at   = static_cast<char>(4 * (part % 4));
        const __m256i byte = _mm256_setr_m128i(_mm_set1_epi16(static_cast<int16_t>(at | (at + 1) << 8)),
                                               _mm_set1_epi16(static_cast<int16_t>((at + 2) | (at + 3) << 8)));
        return _mm256_shuffle_epi8(here, byte);
    }

    // What the offset of the codes takes from a block's sum, spread over the lanes.
    __m256i start(const BlockFactor * factors) const {
        const __m256i first = _mm256_mullo_epi32(whole[0], second_members(factors));
        return _mm256_add_epi32(first, _mm256_mullo_epi32(whole[1], second_members(factors + 8)));
    }

  private:
    // The starts of 8 parts, in the order 0, 1, 4, 5, 2, 3, 6, 7.
    static __m256i second_members(const BlockFactor * factors) {
        const auto * floats = reinterpret_cast<const float *>(factors);
        return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8), 0xDD));
    }
    static __m256i in_their_order(__m256i eight) { return _mm256_permutevar8x32_epi32(eight, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)); }
};

inline int32_t sum_of(__m128i ints) {
    const __m128i half = _mm_add_epi32(ints, _mm_unpackhi_epi64(ints, ints));
    return _mm_cvtsi128_si32(half) + _mm_extract_epi32(half, 1);
}
inline int32_t sum_of(__m256i ints) { return sum_of(_mm_add_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1))); }

// A row times the columns of a tile. Its sums are the ones at `at`.
template <size_t n_columns> void multiply_row(const char * row, size_t row_bytes, size_t n_blocks, const Tile<n_columns> & tile, size_t at) {
    constexpr size_t n_factors = n_super / Q6_K::block;
    float            totals[n_columns] = {};
    for (size_t i = 0; i < n_blocks; ++i) {
        const auto & block = *block_of<block_q6_K>(row, i);
        for (size_t line = 0; line < sizeof(block); line += 64) { // rows are short: no stream is found
            _mm_prefetch(reinterpret_cast<const char *>(&block) + 4 * row_bytes + line, _MM_HINT_T0);
        }
        const RowsQ6_K unpacked(block);
        __m256i        whole[n_columns];
        for (size_t c = 0; c < n_columns; ++c) {
            whole[c] = unpacked.start(tile.factors[c] + i * n_factors);
        }
#pragma GCC unroll 8
        for (size_t part = 0; part < n_super / n_block; ++part) {
            const __m256i codes = RowsQ6_K::codes(block, part), scale = unpacked.scale(part);
#pragma GCC unroll 8
            for (size_t c = 0; c < n_columns; ++c) {
                const int8_t * activations = tile.codes[c] + i * n_super + part * n_block;
                const __m256i  two         = _mm256_maddubs_epi16(codes, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(activations)));
                whole[c]                   = _mm256_add_epi32(whole[c], _mm256_madd_epi16(two, scale));
            }
        }
        for (size_t c = 0; c < n_columns; ++c) {
            totals[c] = __builtin_fmaf(static_cast<float>(sum_of(whole[c])) * tile.factors[c][i * n_factors].scale, unpacked.delta, totals[c]);
        }
    }
    for (size_t c = 0; c < n_columns; ++c) {
        tile.out[c][at] = totals[c];
    }
}

} // namespace

} // namespace edgekv
