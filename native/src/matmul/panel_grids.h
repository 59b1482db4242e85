// Weights in blocks of 256 whose codes are looked up in grids, unpacked. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/grids.h"
#include "matmul/panel_supers.h"

namespace edgekv {

namespace {

// Which of 32 numbers are negative, by a bit or a byte for each; and bytes with these negated.
#if defined(__AVX512VNNI__)
using Negative = __mmask32;

inline Negative negative_of(uint32_t bits) { return bits; }
inline Negative negative_of(__m256i bytes) { return _mm256_movepi8_mask(bytes); }
inline __m256i  negated(__m256i bytes, Negative negative) { return _mm256_mask_sub_epi8(bytes, negative, _mm256_setzero_si256(), bytes); }
#else
using Negative = __m256i; // no byte is 0

inline Negative negative_of(__m256i bytes) { return _mm256_or_si256(bytes, _mm256_set1_epi8(1)); }
inline Negative negative_of(uint32_t bits) { return negative_of(set_bytes(static_cast<int32_t>(bits))); }
inline __m256i  negated(__m256i bytes, Negative negative) { return _mm256_sign_epi8(bytes, negative); }
#endif

// 32 numbers of a block.
struct Looked {
    __m256i  magnitudes;
    Negative negative;
};

// What `at` finds for each of four eights, the first one first.
template <typename At> EDGEKV_INLINE __m256i four_eights(const At & at) {
    const auto eight = [&](size_t j) { return static_cast<int64_t>(at(j)); };
    return _mm256_set_epi64x(eight(3), eight(2), eight(1), eight(0));
}

template <typename Four> EDGEKV_INLINE __m256i eight_fours(const Four & four) {
    const auto one = [&](size_t j) { return static_cast<int32_t>(four(j)); };
    return _mm256_set_epi32(one(7), one(6), one(5), one(4), one(3), one(2), one(1), one(0));
}

template <typename Grid> EDGEKV_INLINE __m256i magnitudes_of(const typename Grid::Block & block, size_t i) {
    if constexpr (Grid::has_fours) {
        return eight_fours([&](size_t j) { return Grid::four(block, 8 * i + j); });
    } else {
        return four_eights([&](size_t j) { return Grid::eight(block, 4 * i + j); });
    }
}

// Eight places in the grid are made at once: a byte of each, and its ninth bit.
template <> EDGEKV_INLINE __m256i magnitudes_of<Iq3S>(const block_iq3_s & block, size_t i) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(block.qs + 8 * i)));
    const __m256i ninth = _mm256_sllv_epi32(_mm256_set1_epi32(block.qh[i]), _mm256_setr_epi32(8, 7, 6, 5, 4, 3, 2, 1));
    alignas(32) uint32_t places[8];
    _mm256_store_si256(reinterpret_cast<__m256i *>(places), _mm256_or_si256(bytes, _mm256_and_si256(ninth, _mm256_set1_epi32(256))));
    return eight_fours([&](size_t j) { return iq3s_grid[places[j]]; });
}

// The i-th 32 of a block.
template <typename Grid> EDGEKV_INLINE Looked looked_up(const typename Grid::Block & block, size_t i) {
    Looked looked;
    looked.magnitudes = magnitudes_of<Grid>(block, i);
    if constexpr (Grid::has_even) {
        looked.negative = negative_of(four_eights([&](size_t j) { return ksigns64[Grid::seven(block, 4 * i + j)]; }));
    } else {
        looked.negative = negative_of(Grid::signs(block, i));
    }
    return looked;
}

template <typename Grid> struct OfGrid : Super {
    static constexpr ggml_type type       = Grid::type;
    static constexpr size_t    n_fetches  = 8 * n_bands;
    static constexpr size_t    part       = Grid::part;
    static constexpr size_t    block      = Grid::part;
    static constexpr int32_t   offset     = adds_four ? 64 : 0;
    static constexpr bool      is_signed  = !adds_four;
    static constexpr bool      has_minima = false;
    static constexpr bool      is_whole   = true; // as row by row (few_rows.h)
    static constexpr size_t    n_at_once  = 2 * 4 * Grid::largest * 127 <= INT16_MAX ? 4 : 2;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            const auto block = [&](size_t row) { return block_of<typename Grid::Block>(rows[n_band * band + row], i); };
            put_odd(block, floats_of_halves(groups_of(block).of[0]) * Grid::unit, band, panel);
            for (size_t piece = 0; piece < n_super / 32; ++piece) {
                ahead.fetch();
                alignas(sizeof(Wide)) uint8_t codes[n_band][32];
                for (size_t row = 0; row < n_band; ++row) {
                    _mm256_store_si256(reinterpret_cast<__m256i *>(codes[row]), codes_of(*block(row), piece));
                }
                const EightGroups groups = eight_groups_of([&](size_t row) { return codes[row]; });
                for (size_t g = 0; g < 8; ++g) {
                    put(panel.codes, 8 * piece + g, band, groups.of[g]);
                }
            }
        }
    }

  private:
    static EDGEKV_INLINE __m256i codes_of(const typename Grid::Block & block, size_t i) {
        const Looked looked = looked_up<Grid>(block, i);
        return _mm256_add_epi8(negated(looked.magnitudes, looked.negative), _mm256_set1_epi8(static_cast<char>(offset)));
    }

    template <typename BlockOf> static EDGEKV_INLINE void put_odd(const BlockOf & block, WideFloats delta, size_t band, const Panel & panel) {
        put(panel.deltas + n_band * band, delta);
        for (size_t p = 0; p < n_super / part; ++p) {
            Signs scales;
            for (size_t row = 0; row < n_band; ++row) {
                scales[row] = static_cast<int32_t>(2 * Grid::scale(*block(row), p) + 1);
            }
            put(panel.scales + p * n_panel_rows + n_band * band, (WideFloats)(adds_four ? (Wide)scales : twice((Wide)scales)));
        }
    }
};

} // namespace

} // namespace edgekv
