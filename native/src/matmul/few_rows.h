// Products of types with many scales a block, or with grids, with few columns, row by row: rows are unpacked in registers at the memory's
// speed, which panels of so many parts miss. Sums over a block of 256 are whole numbers in panels too, so both round alike. All of it is each source's own
// (kernels/vectors.h).
#pragma once

#include "matmul/column_tiles.h"
#include "matmul/panel_folded.h"
#include "matmul/panel_grids.h"

namespace edgekv {

namespace {

// Sixteen scales of two bytes, and what all are multiplied by. The sums of two parts of 16 numbers stand in lanes 0 to 3 and 4 to 7.
struct RowScales {
    __m256i scales;
    float   delta;

    // The scale of 16 codes in each half, of 8 scales that stand in both.
    template <typename Block> __m256i scale(const Block &, size_t part) const {
        const __m256i here = part < 4 ? _mm256_permute4x64_epi64(scales, 0x44) : _mm256_permute4x64_epi64(scales, 0xEE);
        const char    at   = static_cast<char>(4 * (part % 4));
        const __m256i byte = _mm256_setr_m128i(_mm_set1_epi16(static_cast<int16_t>(at | (at + 1) << 8)),
                                               _mm_set1_epi16(static_cast<int16_t>((at + 2) | (at + 3) << 8)));
        return _mm256_shuffle_epi8(here, byte);
    }
};

inline __m256i load32(const void * src) { return _mm256_loadu_si256(static_cast<const __m256i *>(src)); }

// The second members of 8 factors, in the order 0, 1, 4, 5, 2, 3, 6, 7.
inline __m256i second_members(const BlockFactor * factors) {
    const auto * floats = reinterpret_cast<const float *>(factors);
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8), 0xDD));
}
inline __m256i in_their_order(__m256i eight) { return _mm256_permutevar8x32_epi32(eight, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)); }

// sum + the products of two numbers of 16 bits in each lane with two others.
inline __m256i dot2(__m256i sum, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__)
    return _mm256_dpwssd_epi32(sum, a, b);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
}

inline float float_of_half(ggml_half half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))); }

// Starts stand in every lane in which their scale does.
struct RowQ6_K : RowScales {
    using Weights = Q6_K;
    using Block   = block_q6_K;
    static constexpr size_t most_columns = 3; // more are faster in panels

    __m256i whole[2]; // scales as 8 numbers each, in the order of second_members

    explicit RowQ6_K(const Block & block) : RowScales{ _mm256_cvtepi8_epi16(load16(block.scales)), float_of_half(block.d) } {
        const __m128i scales = load16(block.scales);
        whole[0] = in_their_order(_mm256_cvtepi8_epi32(scales));
        whole[1] = in_their_order(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(scales, scales)));
    }

    // 32 codes.
    static __m256i codes(const Block & block, size_t part) {
        const __m256i both = load32(block.ql + 64 * (part / 4) + 32 * (part % 2)), bits = load32(block.qh + 32 * (part / 4));
        const __m256i low  = _mm256_and_si256(part % 4 < 2 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
        const __m256i high = part % 4 < 2 ? _mm256_slli_epi16(bits, 4 - static_cast<int>(2 * (part % 4)))
                                          : _mm256_srli_epi16(bits, static_cast<int>(2 * (part % 4)) - 4);
        return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    }

    // Sums of two products.
    static __m256i pairs(__m256i codes, __m256i activations) { return _mm256_maddubs_epi16(codes, activations); }

    // What the offset of the codes takes from a block's sum, spread over the lanes.
    __m256i start(const BlockFactor * factors) const {
        const __m256i first = _mm256_mullo_epi32(whole[0], second_members(factors));
        return _mm256_add_epi32(first, _mm256_mullo_epi32(whole[1], second_members(factors + 8)));
    }
};

struct RowQ2_K : RowScales {
    using Weights = Q2_K;
    using Block   = block_q2_K;
    static constexpr size_t most_columns = 1;

    __m256i minima; // in the order of second_members, two in each lane
    float   least;

    explicit RowQ2_K(const Block & block)
        : RowScales{ fours_of(block.scales, 0), float_of_half(block.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d) },
          minima(in_their_order(fours_of(block.scales, 4))), least(float_of_half(block.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin)) {}

    static __m256i codes(const Block & block, size_t part) {
        return _mm256_and_si256(_mm256_srli_epi16(load32(block.qs + 32 * (part / 4)), static_cast<int>(2 * (part % 4))), _mm256_set1_epi8(3));
    }

    static __m256i pairs(__m256i codes, __m256i activations) { return _mm256_maddubs_epi16(codes, activations); }

    static __m256i start(const BlockFactor *) { return _mm256_setzero_si256(); }

    // Minima times the sums of 16 numbers.
    __m256i taken(const BlockFactor * factors) const { return _mm256_madd_epi16(minima, second_members(factors)); }

  private:
    static __m256i fours_of(const uint8_t * bytes, int from) {
        return _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(load16(bytes), from), _mm_set1_epi8(15)));
    }
};

struct RowQ3_K : RowScales {
    using Weights = Q3_K;
    using Block   = block_q3_K;
    static constexpr size_t most_columns = 1;

    explicit RowQ3_K(const Block & block) : RowScales{ _mm256_cvtepi8_epi16(sixes_of(block)), float_of_half(block.d) } {}

    static __m256i codes(const Block & block, size_t part) {
        const __m256i lower = _mm256_srli_epi16(load32(block.qs + 32 * (part / 4)), static_cast<int>(2 * (part % 4)));
        const __m256i third = _mm256_srli_epi16(_mm256_slli_epi16(load32(block.hmask), static_cast<int>(7 - part)), 5);
        const __m256i codes = _mm256_or_si256(_mm256_and_si256(lower, _mm256_set1_epi8(3)), _mm256_and_si256(third, _mm256_set1_epi8(4)));
        return _mm256_sub_epi8(codes, _mm256_set1_epi8(4));
    }

    static __m256i pairs(__m256i codes, __m256i activations) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes));
    }

    static __m256i start(const BlockFactor *) { return _mm256_setzero_si256(); }

  private:
    // Sixteen scales in 12 bytes: the lower four bits of each in eight, the upper two in four.
    static __m128i sixes_of(const Block & block) {
        const __m128i bytes = _mm_srli_si128(load16(block.qs + 62), 2);
        const __m128i lower = _mm_srlv_epi32(_mm_shuffle_epi32(bytes, 0b01'00'01'00), _mm_setr_epi32(0, 0, 4, 4));
        const __m128i upper = _mm_slli_epi32(_mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(bytes, 0b10'10'10'10), _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3)), 4);
        return _mm_sub_epi8(_mm_or_si128(_mm_and_si128(lower, _mm_set1_epi8(15)), upper), _mm_set1_epi8(32));
    }
};

// Magnitudes stay apart from their signs, which activations take.
template <typename Grid> struct RowOfGrid : RowScales {
    using Weights = OfGrid<Grid>;
    using Block   = typename Grid::Block;
    static constexpr size_t most_columns = 4; // more are faster in panels

    explicit RowOfGrid(const Block & block) : RowScales{ scales_of(block), float_of_half(block.d) * Grid::unit } {}

    static Looked codes(const Block & block, size_t part) { return looked_up<Grid>(block, part); }

    static __m256i pairs(const Looked & codes, __m256i activations) {
        return _mm256_maddubs_epi16(codes.magnitudes, negated(activations, codes.negative));
    }

    __m256i scale(const Block & block, size_t part) const {
        if constexpr (Grid::has_bytes) {
            return RowScales::scale(block, part);
        } else {
            return _mm256_set1_epi16(static_cast<int16_t>(2 * Grid::scale(block, part) + 1));
        }
    }

    static __m256i start(const BlockFactor *) { return _mm256_setzero_si256(); }

  private:
    static __m256i scales_of(const Block & block) {
        if constexpr (Grid::has_bytes) {
            uint64_t bytes = 0;
            std::memcpy(&bytes, block.scales, sizeof(block.scales));
            const __m128i both = _mm_cvtsi64_si128(static_cast<int64_t>(bytes)), mask = _mm_set1_epi8(15);
            __m128i       four = _mm_unpacklo_epi8(_mm_and_si128(both, mask), _mm_and_si128(_mm_srli_epi16(both, 4), mask));
            four               = Grid::part == n_block ? _mm_unpacklo_epi8(four, four) : four;
            return _mm256_cvtepi8_epi16(_mm_add_epi8(_mm_add_epi8(four, four), _mm_set1_epi8(1)));
        } else {
            return _mm256_setzero_si256(); // each lies with the signs of its part
        }
    }
};

inline int32_t sum_of(__m128i ints) {
    const __m128i half = _mm_add_epi32(ints, _mm_unpackhi_epi64(ints, ints));
    return _mm_cvtsi128_si32(half) + _mm_extract_epi32(half, 1);
}
inline int32_t sum_of(__m256i ints) { return sum_of(_mm_add_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1))); }

// A row times the columns of a tile. Its sums are the ones at `at`.
template <typename Row, size_t n_columns>
__attribute__((noinline)) void multiply_row(const char * row, size_t row_bytes, size_t n_blocks, const Tile<n_columns> & tile, size_t at) {
    constexpr size_t n_factors = n_super / Row::Weights::block;
    float            totals[n_columns] = {};
    for (size_t i = 0; i < n_blocks; ++i) {
        const auto & block = *block_of<typename Row::Block>(row, i);
        for (size_t line = 0; line < sizeof(block); line += 64) { // rows are short: no stream is found
            _mm_prefetch(reinterpret_cast<const char *>(&block) + 4 * row_bytes + line, _MM_HINT_T0);
        }
        const Row unpacked(block);
        __m256i        whole[n_columns];
        for (size_t c = 0; c < n_columns; ++c) {
            whole[c] = unpacked.start(tile.factors[c] + i * n_factors);
        }
#pragma GCC unroll 8
        for (size_t part = 0; part < n_super / n_block; ++part) {
            const auto    codes = Row::codes(block, part);
            const __m256i scale = unpacked.scale(block, part);
#pragma GCC unroll 8
            for (size_t c = 0; c < n_columns; ++c) {
                const int8_t * activations = tile.codes[c] + i * n_super + part * n_block;
                whole[c]                   = dot2(whole[c], Row::pairs(codes, load32(activations)), scale);
            }
        }
        for (size_t c = 0; c < n_columns; ++c) {
            const BlockFactor * factors = tile.factors[c] + i * n_factors;
            totals[c] = __builtin_fmaf(static_cast<float>(sum_of(whole[c])) * factors->scale, unpacked.delta, totals[c]);
            if constexpr (Row::Weights::has_fours) {
                totals[c] = __builtin_fmaf(static_cast<float>(sum_of(unpacked.taken(factors))) * -factors->scale, unpacked.least, totals[c]);
            }
        }
    }
    for (size_t c = 0; c < n_columns; ++c) {
        tile.out[c][at] = totals[c];
    }
}

} // namespace

} // namespace edgekv
