// Weights of two and three bits in blocks of 256, unpacked with NEON: codes so small that a byte holds them times the scale of their
// part. So products of all 256 are added up before they are scaled. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/panel_supers_neon.h"

namespace edgekv {

namespace {

struct Folded : Simple {
    static constexpr size_t own_block = n_super;
};

// Call put_part(part, groups, shift) for the parts of 16 of a block: their numbers have two bits of each byte, from `shift` on.
template <typename Rows, typename PutPart> inline void each_part(const Rows & rows, size_t i, const PutPart & put_part) {
    for (size_t piece = 0; piece < 4; ++piece) { // 16 bytes
        const Square square = rows.bytes(i, codes_of, 16 * piece);
        for (size_t j = 0; j < 4; ++j) {
            put_part(8 * (piece / 2) + 2 * j + piece % 2, square, static_cast<int>(2 * j));
        }
    }
}

// A byte of each row, for 16 numbers of it.
template <typename At> inline Square each_sixteen(const At & at) {
    return square_of([&](size_t row) { return vdupq_n_u8(at(row)); });
}

struct Q2_K : Folded {
    static constexpr ggml_type type       = GGML_TYPE_Q2_K;
    static constexpr size_t    part       = 16; // has a minimum
    static constexpr size_t    block      = 16;
    static constexpr bool      has_minima = true;
    using Block                           = block_q2_K;

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        const float32x4_t below = vnegq_f32(rows.floats(place.i, least_of));
        const Codes       codes(panel, place.to * n_super, place.four);
        vst1q_f32(panel.scales + place.to * n_panel_rows + 4 * place.four, rows.floats(place.i, first_of));
        each_part(rows, place.i, [&](size_t p, const Square & square, int shift) {
            const auto   both   = [&](size_t row) { return rows.block(row, place.i).scales[p]; }; // scale and minimum
            const Square scales = each_sixteen([&](size_t row) { return both(row) & 15; });
            const float  minima[] = { static_cast<float>(both(0) >> 4), static_cast<float>(both(1) >> 4), static_cast<float>(both(2) >> 4),
                                      static_cast<float>(both(3) >> 4) };
            vst1q_f32(panel.minima + place.at + p * n_panel_rows, vmulq_f32(vld1q_f32(minima), below));
            codes.put(p, [&](size_t j) { return vreinterpretq_s8_u8(vmulq_u8(moved_bits<2, 0>(square.of[j], shift), scales.of[j])); });
        });
    }
};

struct Q3_K : Folded {
    static constexpr ggml_type type  = GGML_TYPE_Q3_K;
    static constexpr size_t    part  = n_super;
    static constexpr size_t    block = n_super;
    using Block                      = block_q3_K;

    // Codes times scales are -124 to 128. Their opposites fit a byte.
    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        vst1q_f32(panel.scales + place.at, vnegq_f32(rows.floats(place.i, scale_of)));
        int8_t opposites[4][16]; // of scales
        for (size_t row = 0; row < 4; ++row) {
            put_opposites(rows.block(row, place.i).scales, opposites[row]);
        }
        const Square third[] = { rows.bytes(place.i, mask_of, 0), rows.bytes(place.i, mask_of, 16) };
        const Codes  codes(panel, place.to * n_super, place.four);
        each_part(rows, place.i, [&](size_t p, const Square & square, int shift) {
            const Square scales = each_sixteen([&](size_t row) { return static_cast<uint8_t>(opposites[row][p]); });
            codes.put(p, [&](size_t j) {
                const uint8x16_t upper = moved_bits<1, 2>(third[p % 2].of[j], static_cast<int>(p / 2));
                return vmulq_s8(less(vorrq_u8(moved_bits<2, 0>(square.of[j], shift), upper), 4), vreinterpretq_s8_u8(scales.of[j]));
            });
        });
    }

  private:
    // Sixteen scales of six bits in 12 bytes: the lower four of each in eight, the upper two in four.
    static void put_opposites(const uint8_t * bytes, int8_t * opposites) {
        for (size_t p = 0; p < 16; ++p) {
            const int lower = bytes[p % 8] >> 4 * (p / 8) & 15, upper = bytes[8 + p % 4] >> 2 * (p / 4) & 3;
            opposites[p]    = static_cast<int8_t>(32 - (lower | upper << 4));
        }
    }
};

} // namespace

} // namespace edgekv
