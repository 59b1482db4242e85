// Weights in blocks of 256, whose parts have whole numbers for scales, unpacked with NEON. All of it is each source's own
// (kernels/vectors.h).
#pragma once

#include "matmul/panel_neon.h"

namespace edgekv {

namespace {

// Two numbers of 16 bits of each row, with ggml's names.
template <int n_rows> struct Two {
    struct {
        ggml_half d[n_rows], dmin[n_rows];
    } GGML_COMMON_AGGR_S;
};

struct Super {
    static constexpr size_t own_block  = n_super;
    static constexpr size_t part       = 32;
    static constexpr size_t block      = 32;
    static constexpr bool   has_parts  = true;
    static constexpr bool   has_minima = true;
};

// Eight scales and eight minima of six bits each, four of a word.
inline uint32x4_t bytes_of_sixes(const uint8_t * sixes) {
    uint32_t words[3];
    std::memcpy(words, sixes, sizeof(words));
    const uint32_t found[] = { words[0] & 0x3f3f3f3f, (words[2] & 0x0f0f0f0f) | (words[0] >> 2 & 0x30303030),
                               words[1] & 0x3f3f3f3f, (words[2] >> 4 & 0x0f0f0f0f) | (words[1] >> 2 & 0x30303030) };
    return vld1q_u32(found);
}

// Call put(part, scales, minima) for each part of four rows.
template <typename Block, typename Put> inline void each_six(const Apart<Block> & rows, size_t i, const Put & put) {
    const auto  sixes = [&](size_t row) { return bytes_of_sixes(rows.block(row, i).scales); };
    const Words words = transposed(sixes(0), sixes(1), sixes(2), sixes(3));
    for (size_t part = 0; part < 8; ++part) {
        const int32x4_t  right = vdupq_n_s32(-8 * static_cast<int>(part % 4));
        const uint32x4_t byte  = vdupq_n_u32(255);
        put(part, vreinterpretq_s32_u32(vandq_u32(vshlq_u32(words.of[part / 4], right), byte)),
            vreinterpretq_s32_u32(vandq_u32(vshlq_u32(words.of[2 + part / 4], right), byte)));
    }
}

template <typename Block, int n_rows, int n_bytes, typename Put>
inline void each_six(const Together<Block, n_rows, n_bytes> & rows, size_t i, const Put & put) {
    for (size_t part = 0; part < 8; ++part) { // there, eight scales and minima are those of eight rows
        uint8_t bytes[16 + 4] = {}; // eight are read at once, of which four count
        vst1q_u8(bytes, bytes_of(bytes_of_sixes(rows.blocks[i].scales + 12 * part)));
        const auto four = [&](size_t from) {
            return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vld1_u8(bytes + from)))));
        };
        put(part, four(0 + 4 * rows.which), four(8 + 4 * rows.which));
    }
}

template <typename Rows> inline void put_sixes(const Rows & rows, const Place & place, const Panel & panel) {
    const float32x4_t least = vnegq_f32(rows.floats(place.i, least_of));
    vst1q_f32(panel.deltas + place.to * n_panel_rows + 4 * place.four, rows.floats(place.i, first_of));
    each_six(rows, place.i, [&](size_t part, int32x4_t scales, int32x4_t minima) {
        const size_t at = place.at + part * n_panel_rows;
        vst1q_s32(panel.parts + at, scales);
        vst1q_f32(panel.minima + at, vmulq_f32(vcvtq_f32_s32(minima), least));
    });
}

// `code` makes the codes of one of eight parts of 32 of its half bytes.
template <typename Rows, typename Code>
inline void unpack_parts(const Rows & rows, const Place & place, const Panel & panel, const Code & code) {
    const Codes codes(panel, place.to * n_super, place.four);
    for (size_t pair = 0; pair < 4; ++pair) { // of parts
        for (size_t piece = 0; piece < 2; ++piece) {
            const Square halves = rows.bytes(place.i, codes_of, 32 * pair + 16 * piece);
            codes.put(4 * pair + piece, [&](size_t j) { return code(low_half(halves.of[j]), j, piece, 2 * pair); });
            codes.put(4 * pair + 2 + piece, [&](size_t j) { return code(high_half(halves.of[j]), j, piece, 2 * pair + 1); });
        }
    }
}

struct Q4_K : Super {
    static constexpr ggml_type type = GGML_TYPE_Q4_K;
    using Block                     = block_q4_K;
    template <int n_rows> struct Blocks {
        Two<n_rows> GGML_COMMON_AGGR_U;
        uint8_t   scales[n_rows * sizeof(block_q4_K::scales)];
        uint8_t   qs[n_rows * sizeof(block_q4_K::qs)];
    };

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        put_sixes(rows, place, panel);
        unpack_parts(rows, place, panel, [](uint8x16_t half, size_t, size_t, size_t) { return vreinterpretq_s8_u8(half); });
    }
};

struct Q5_K : Super {
    static constexpr ggml_type type = GGML_TYPE_Q5_K;
    using Block                     = block_q5_K;
    template <int n_rows> struct Blocks {
        Two<n_rows> GGML_COMMON_AGGR_U;
        uint8_t   scales[n_rows * sizeof(block_q5_K::scales)];
        uint8_t   qh[n_rows * sizeof(block_q5_K::qh)];
        uint8_t   qs[n_rows * sizeof(block_q5_K::qs)];
    };

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        put_sixes(rows, place, panel);
        const Square fifth[] = { rows.bytes(place.i, high_of, 0), rows.bytes(place.i, high_of, 16) };
        unpack_parts(rows, place, panel, [&](uint8x16_t half, size_t j, size_t piece, size_t part) { // bit `part` of each byte
            return vreinterpretq_s8_u8(vorrq_u8(half, moved_bits<1>(fifth[piece].of[j], static_cast<int>(part))));
        });
    }
};

struct Q6_K : Super {
    static constexpr ggml_type type       = GGML_TYPE_Q6_K;
    static constexpr size_t    part       = 16;
    static constexpr size_t    block      = n_super;
    static constexpr bool      has_minima = false;
    using Block                           = block_q6_K;
    template <int n_rows> struct Blocks {
        ggml_half d[n_rows];
        int8_t    scales[n_rows * sizeof(block_q6_K::scales)];
        uint8_t   ql[n_rows * sizeof(block_q6_K::ql)];
        uint8_t   qh[n_rows * sizeof(block_q6_K::qh)];
    };

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        vst1q_f32(panel.deltas + place.to * n_panel_rows + 4 * place.four, rows.floats(place.i, scale_of));
        put_signed(rows, place, panel);
        const Codes codes(panel, place.to * n_super, place.four);
        for (size_t quarter = 0; quarter < 4; ++quarter) { // 16 of the low halves of bytes beside 16 more, in each 128 weights
            const size_t of_128 = quarter / 2, piece = quarter % 2, first = 8 * of_128 + piece;
            const Square low[]  = { rows.bytes(place.i, low_of, 64 * of_128 + 16 * piece),
                                    rows.bytes(place.i, low_of, 64 * of_128 + 32 + 16 * piece) };
            const Square upper  = rows.bytes(place.i, high_of, 32 * of_128 + 16 * piece);
            for (size_t i = 0; i < 4; ++i) {
                codes.put(first + 2 * i, [&](size_t j) {
                    const uint8x16_t byte = low[i % 2].of[j];
                    const uint8x16_t half = i < 2 ? low_half(byte) : high_half(byte);
                    return less(vorrq_u8(half, moved_bits<2>(upper.of[j], static_cast<int>(2 * i))), 32);
                });
            }
        }
    }

  private:
    // Sixteen scales of a signed byte.
    static void put_signed(const Apart<block_q6_K> & rows, const Place & place, const Panel & panel) {
        const auto scales = [&](size_t row) { return vreinterpretq_u32_s8(vld1q_s8(rows.block(row, place.i).scales)); };
        const Words words = transposed(scales(0), scales(1), scales(2), scales(3));
        for (size_t part = 0; part < 16; ++part) {
            const uint32x4_t upper = vshlq_u32(words.of[part / 4], vdupq_n_s32(24 - 8 * static_cast<int>(part % 4)));
            vst1q_s32(panel.parts + place.at + part * n_panel_rows, vshrq_n_s32(vreinterpretq_s32_u32(upper), 24));
        }
    }

    template <typename Type, int n_rows, int n_bytes>
    static void put_signed(const Together<Type, n_rows, n_bytes> & rows, const Place & place, const Panel & panel) {
        for (size_t part = 0; part < 16; ++part) {
            const int8_t * scales = rows.blocks[place.i].scales + n_rows * part + 4 * rows.which;
            const int32_t  four[] = { scales[0], scales[1], scales[2], scales[3] };
            vst1q_s32(panel.parts + place.at + part * n_panel_rows, vld1q_s32(four));
        }
    }
};

struct IQ4_XS : Super {
    static constexpr ggml_type type       = GGML_TYPE_IQ4_XS;
    static constexpr size_t    block      = n_super;
    static constexpr bool      has_minima = false;
    using Block                           = block_iq4_xs;

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        const int8x16_t values = IQ4_NL::table();
        vst1q_f32(panel.deltas + place.to * n_panel_rows + 4 * place.four, rows.floats(place.i, scale_of));
        for (size_t row = 0; row < 4; ++row) { // scales of six bits, the upper two apart
            const Block & found = rows.block(row, place.i);
            for (size_t p = 0; p < n_super / part; ++p) {
                panel.parts[place.at + p * n_panel_rows + row] = ((found.scales_l[p / 2] >> 4 * (p % 2) & 15) | (found.scales_h >> 2 * p & 3) << 4) - 32;
            }
        }
        const Codes codes(panel, place.to * n_super, place.four);
        for (size_t p = 0; p < n_super / part; ++p) {
            const Square halves = rows.bytes(place.i, codes_of, 16 * p);
            codes.put(2 * p, [&](size_t j) { return vqtbl1q_s8(values, low_half(halves.of[j])); });
            codes.put(2 * p + 1, [&](size_t j) { return vqtbl1q_s8(values, high_half(halves.of[j])); });
        }
    }
};

} // namespace

} // namespace edgekv
