// Weights in blocks of 256 whose codes are looked up in grids, unpacked. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/grids.h"
#include "matmul/panel_supers.h"

namespace edgekv {

namespace {

// 32 numbers of a block: their magnitudes, and bytes with their signs, none of which is 0.
struct Looked {
    __m256i magnitudes, signs;
};

// The i-th 32 of a block.
template <typename Grid> EDGEKV_INLINE Looked looked_up(const typename Grid::Block & block, size_t i) {
    const auto    eight    = [&](size_t j) { return static_cast<int64_t>(Grid::eight(block, 4 * i + j)); };
    const __m256i negative = set_bytes(static_cast<int32_t>(Grid::signs(block, i)));
    return { _mm256_set_epi64x(eight(3), eight(2), eight(1), eight(0)), _mm256_or_si256(negative, _mm256_set1_epi8(1)) };
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
        return _mm256_add_epi8(_mm256_sign_epi8(looked.magnitudes, looked.signs), _mm256_set1_epi8(static_cast<char>(offset)));
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
