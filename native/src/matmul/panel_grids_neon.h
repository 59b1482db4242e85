// Weights in blocks of 256 whose codes are looked up in grids, unpacked with NEON. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/grids.h"
#include "matmul/panel_supers_neon.h"

namespace edgekv {

namespace {

template <typename Grid> struct OfGrid : Super {
    static constexpr ggml_type type       = Grid::type;
    static constexpr size_t    part       = Grid::part;
    static constexpr size_t    block      = n_super;
    static constexpr bool      has_minima = false;
    using Block                           = typename Grid::Block;

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        uint8_t codes_of_rows[4][n_super];
        vst1q_f32(panel.deltas + place.to * n_panel_rows + 4 * place.four, vmulq_n_f32(rows.floats(place.i, scale_of), Grid::unit));
        for (size_t row = 0; row < 4; ++row) {
            const Block & found = rows.block(row, place.i);
            for (size_t i = 0; i < n_super / 16; ++i) {
                vst1q_u8(codes_of_rows[row] + 16 * i, sixteen(found, i));
            }
            for (size_t p = 0; p < n_super / part; ++p) {
                panel.parts[place.at + p * n_panel_rows + row] = static_cast<int32_t>(2 * Grid::scale(found, p) + 1);
            }
        }
        const Codes codes(panel, place.to * n_super, place.four);
        for (size_t piece = 0; piece < n_super / 16; ++piece) {
            const Square square = square_of([&](size_t row) { return vld1q_u8(codes_of_rows[row] + 16 * piece); });
            codes.put(piece, [&](size_t j) { return vreinterpretq_s8_u8(square.of[j]); });
        }
    }

  private:
    // The i-th 16 of a block.
    static uint8x16_t sixteen(const Block & block, size_t i) {
        const uint8x16_t magnitudes = vcombine_u8(vcreate_u8(eight(block, 2 * i)), vcreate_u8(eight(block, 2 * i + 1)));
        const uint8x16_t negative   = negative_of(block, i);
        return vsubq_u8(veorq_u8(magnitudes, negative), negative);
    }

    static uint64_t eight(const Block & block, size_t i) {
        if constexpr (Grid::has_fours) {
            return Grid::four(block, 2 * i) | static_cast<uint64_t>(Grid::four(block, 2 * i + 1)) << 32;
        } else {
            return Grid::eight(block, i);
        }
    }

    static uint8x16_t negative_of(const Block & block, size_t i) {
        if constexpr (Grid::has_even) {
            return vcombine_u8(vcreate_u8(ksigns64[Grid::seven(block, 2 * i)]), vcreate_u8(ksigns64[Grid::seven(block, 2 * i + 1)]));
        } else {
            const uint32_t signs = Grid::signs(block, i / 2) >> 16 * (i % 2);
            return set_bytes(static_cast<uint8_t>(signs), static_cast<uint8_t>(signs >> 8));
        }
    }
};

} // namespace

} // namespace edgekv
