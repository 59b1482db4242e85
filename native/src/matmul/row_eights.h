// Products of a single column with blocks of 32, eight rows at a time, which are read at the memory's speed: panels read 32 rows at once. Sums
// over a block are whole numbers, and floats are added in the order of panels, so both round alike. All of it is each source's own
// (kernels/vectors.h).
#pragma once

#include "matmul/column_tiles.h"
#include "matmul/few_rows.h"
#include "matmul/panel_blocks.h"

#include <algorithm>

namespace edgekv {

namespace {

inline __m256i halves_of_bytes(const uint8_t * bytes) {
    const __m128i both = load16(bytes);
    return _mm256_and_si256(_mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1), _mm256_set1_epi8(15));
}

template <typename Block> inline __m256i with_fifths(const Block & block) {
    int32_t bits;
    std::memcpy(&bits, block.qh, sizeof(bits));
    return _mm256_or_si256(halves_of_bytes(block.qs), _mm256_and_si256(set_bytes(bits), _mm256_set1_epi8(16)));
}

inline __m256i with_offset(__m256i values) { return _mm256_xor_si256(values, _mm256_set1_epi8(static_cast<char>(Signed::offset))); }

// The codes of a block, in the order of the activations, as a panel has them.
inline __m256i codes_of(const block_q4_0 & block) { return halves_of_bytes(block.qs); }
inline __m256i codes_of(const block_q4_1 & block) { return halves_of_bytes(block.qs); }
inline __m256i codes_of(const block_q5_0 & block) { return with_fifths(block); }
inline __m256i codes_of(const block_q5_1 & block) { return with_fifths(block); }
inline __m256i codes_of(const block_q8_0 & block) { return with_offset(load32(block.qs)); }
inline __m256i codes_of(const block_iq4_nl & block) {
    return with_offset(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(IQ4_NL::values()), halves_of_bytes(block.qs)));
}

// Sums of four products in each lane.
template <typename Weights> inline __m256i dots(__m256i codes, __m256i activations) {
#if defined(EDGEKV_DOT4) && defined(__AVX512VNNI__)
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, activations);
#elif defined(EDGEKV_DOT4) && defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), codes, activations);
#elif defined(EDGEKV_DOT4)
    const __m256i low  = _mm256_maddubs_epi16(_mm256_and_si256(codes, _mm256_set1_epi8(127)), activations); // 128 of a code apart
    const __m256i high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(codes, 7), _mm256_set1_epi8(1)), activations);
    const __m256i one  = _mm256_set1_epi16(1);
    return _mm256_add_epi32(_mm256_madd_epi16(low, one), _mm256_slli_epi32(_mm256_madd_epi16(high, one), 7));
#else
    const __m256i pairs = Weights::is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes))
                                             : _mm256_maddubs_epi16(codes, activations);
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

// The sum of each of eight.
inline __m256i sums_of(const __m256i (&lanes)[8]) {
    const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(lanes[0], lanes[1]), _mm256_hadd_epi32(lanes[2], lanes[3]));
    const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(lanes[4], lanes[5]), _mm256_hadd_epi32(lanes[6], lanes[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

template <typename Weights, typename Block> void multiply_eights(const Product & product, size_t first_row, size_t end_row) {
    const size_t n_blocks = product.columns.depth / n_block;
    each_tile<1>(product, n_block, 0, 0, [&](const Tile<1> & tile) {
        for (size_t row = first_row; row < end_row; row += 8) {
            const char * rows[8]; // the last one for those that there are not
            for (size_t i = 0; i < 8; ++i) {
                rows[i] = product.weights + std::min(row + i, end_row - 1) * product.row_bytes;
            }
            __m256 totals = _mm256_setzero_ps();
            for (size_t i = 0; i < n_blocks; ++i) {
                const __m256i activations = load32(tile.codes[0] + i * n_block);
                __m256i       lanes[8], heads; // scales, and minima or something else
#pragma GCC unroll 8
                for (size_t r = 0; r < 8; ++r) {
                    const Block & block = *block_of<Block>(rows[r], i);
                    _mm_prefetch(reinterpret_cast<const char *>(&block) + 8 * product.row_bytes, _MM_HINT_T0); // rows are short
                    lanes[r] = dots<Weights>(codes_of(block), activations);
                }
                const auto head = [&](size_t r) {
                    int32_t bytes;
                    std::memcpy(&bytes, block_of<Block>(rows[r], i), sizeof(bytes));
                    return bytes;
                };
                heads = _mm256_setr_epi32(head(0), head(1), head(2), head(3), head(4), head(5), head(6), head(7));
                const BlockFactor & factor = tile.factors[0][i];
                const __m256i       start  = _mm256_set1_epi32(Weights::offset != 0 ? factor.start : 0);
                const __m256        sums   = _mm256_cvtepi32_ps(_mm256_add_epi32(sums_of(lanes), start));
                const __m256i       halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(heads, _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                                                                                                0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)), 0xD8);
                totals = _mm256_fmadd_ps(_mm256_mul_ps(sums, _mm256_set1_ps(factor.scale)), _mm256_cvtph_ps(_mm256_castsi256_si128(halves)), totals);
                if (Weights::has_minima) {
                    totals = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), _mm256_set1_ps(factor.sum), totals);
                }
            }
            float sums[8];
            _mm256_storeu_ps(sums, totals);
            std::copy_n(sums, std::min<size_t>(8, end_row - row), tile.out[0] + row);
        }
    });
}

} // namespace

} // namespace edgekv
