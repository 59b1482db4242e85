// Weights of each type, unpacked with NEON: 16 rows of them as signed bytes, in the order in which one instruction multiplies some
// numbers of several rows. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/rows_neon.h"

namespace edgekv {

namespace {

inline uint8x16_t low_half(uint8x16_t bytes) { return vandq_u8(bytes, vdupq_n_u8(15)); }
inline uint8x16_t high_half(uint8x16_t bytes) { return vshrq_n_u8(bytes, 4); }

// Bits `from` and up of every byte, n_bits of them, at bit `to`.
template <int n_bits, int to = 4> inline uint8x16_t moved_bits(uint8x16_t bytes, int from) {
    const uint8x16_t lowest = vshlq_u8(bytes, vdupq_n_s8(static_cast<int8_t>(-from)));
    return vshlq_n_u8(vandq_u8(lowest, vdupq_n_u8((1 << n_bits) - 1)), to);
}

inline int8x16_t less(uint8x16_t codes, int8_t offset) { return vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(offset)); }

// Fields of blocks: of one row, or of rows side by side.
constexpr auto scale_of  = [](const auto & block) { return block.d; };
constexpr auto codes_of  = [](const auto & block) { return block.qs; };
constexpr auto low_of    = [](const auto & block) { return block.ql; };
constexpr auto high_of   = [](const auto & block) { return block.qh; };
constexpr auto mask_of   = [](const auto & block) { return block.hmask; };
constexpr auto first_of  = [](const auto & block) { return block.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d; }; // where there are two numbers of 16 bits
constexpr auto second_of = [](const auto & block) { return block.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.m; };
constexpr auto least_of  = [](const auto & block) { return block.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin; };

struct Simple {
    static constexpr size_t own_block  = 32;    // numbers of a block of the file
    static constexpr size_t part       = 32;    // that share a scale, and a minimum
    static constexpr size_t block      = 32;    // that share a BlockFactor
    static constexpr bool   has_parts  = false; // with scales of whole numbers
    static constexpr bool   has_minima = false;
};

// `code` makes codes of half bytes, of which the lower ones are a block's first 16.
template <typename Rows, typename Code>
inline void unpack_halves(const Rows & rows, size_t i, const Codes & codes, const Code & code) {
    const Square halves = rows.bytes(i, codes_of, 0);
    codes.put(0, [&](size_t j) { return code(low_half(halves.of[j]), j, 0); });
    codes.put(1, [&](size_t j) { return code(high_half(halves.of[j]), j, 1); });
}

// Block `i` of four rows becomes block `to` of a panel, as its `four`-th four rows; `at` is where their scales go.
struct Place {
    size_t i, to, four, at;
};

struct Q4_0 : Simple {
    static constexpr ggml_type type = GGML_TYPE_Q4_0;
    using Block                     = block_q4_0;
    template <int n_rows> struct Blocks {
        ggml_half d[n_rows];
        uint8_t   qs[n_rows * sizeof(block_q4_0::qs)];
    };

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        vst1q_f32(panel.scales + place.at, rows.floats(place.i, scale_of));
        // ggml's repacked codes are signed ones of four bits, which differ from the file's by the upper bit
        const uint8x16_t flipped = vdupq_n_u8(Rows::order.n_rows > 1 ? 8 : 0);
        unpack_halves(rows, place.i, Codes(panel, place.to * own_block, place.four),
                      [&](uint8x16_t half, size_t, size_t) { return less(veorq_u8(half, flipped), 8); });
    }
};

struct Q4_1 : Simple {
    static constexpr ggml_type type       = GGML_TYPE_Q4_1;
    static constexpr bool      has_minima = true;
    using Block                           = block_q4_1;

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        vst1q_f32(panel.scales + place.at, rows.floats(place.i, first_of));
        vst1q_f32(panel.minima + place.at, rows.floats(place.i, second_of));
        unpack_halves(rows, place.i, Codes(panel, place.to * own_block, place.four),
                      [](uint8x16_t half, size_t, size_t) { return vreinterpretq_s8_u8(half); });
    }
};

// Bytes that are 255 where one of eight bits is set, and of eight more, else 0.
inline uint8x16_t set_bytes(uint8_t first, uint8_t second) {
    return vtstq_u8(vcombine_u8(vdup_n_u8(first), vdup_n_u8(second)), vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201)));
}

// The fifth bits of 16 numbers of each row, at bit 4: those of two bytes of `qh`.
template <typename Rows> inline Square fifth_bits(const Rows & rows, size_t i, size_t byte) {
    return square_of([&](size_t row) {
        const uint8_t * bits = rows.block(row, i).qh + byte;
        return vandq_u8(set_bytes(bits[0], bits[1]), vdupq_n_u8(16));
    });
}

template <typename Rows> inline void unpack_fives(const Rows & rows, const Place & place, const Panel & panel, int8_t offset) {
    const Square fifth[] = { fifth_bits(rows, place.i, 0), fifth_bits(rows, place.i, 2) };
    unpack_halves(rows, place.i, Codes(panel, place.to * Simple::own_block, place.four),
                  [&](uint8x16_t half, size_t j, size_t part) { return less(vorrq_u8(half, fifth[part].of[j]), offset); });
}

struct Q5_0 : Simple {
    static constexpr ggml_type type = GGML_TYPE_Q5_0;
    using Block                     = block_q5_0;

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        vst1q_f32(panel.scales + place.at, rows.floats(place.i, scale_of));
        unpack_fives(rows, place, panel, 16);
    }
};

struct Q5_1 : Simple {
    static constexpr ggml_type type       = GGML_TYPE_Q5_1;
    static constexpr bool      has_minima = true;
    using Block                           = block_q5_1;

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        vst1q_f32(panel.scales + place.at, rows.floats(place.i, first_of));
        vst1q_f32(panel.minima + place.at, rows.floats(place.i, second_of));
        unpack_fives(rows, place, panel, 0);
    }
};

struct Q8_0 : Simple {
    static constexpr ggml_type type = GGML_TYPE_Q8_0;
    using Block                     = block_q8_0;
    template <int n_rows> struct Blocks {
        ggml_half d[n_rows];
        int8_t    qs[n_rows * sizeof(block_q8_0::qs)];
    };

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        vst1q_f32(panel.scales + place.at, rows.floats(place.i, scale_of));
        const Codes codes(panel, place.to * own_block, place.four);
        for (size_t part16 = 0; part16 < 2; ++part16) {
            const Square square = rows.bytes(place.i, codes_of, 16 * part16);
            codes.put(part16, [&](size_t j) { return vreinterpretq_s8_u8(square.of[j]); });
        }
    }
};

struct IQ4_NL : Simple {
    static constexpr ggml_type type = GGML_TYPE_IQ4_NL;
    using Block                     = block_iq4_nl;
    template <int n_rows> struct Blocks {
        ggml_half d[n_rows];
        uint8_t   qs[n_rows * sizeof(block_iq4_nl::qs)];
    };

    static int8x16_t table() {
        constexpr int8_t values[] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
        return vld1q_s8(values);
    }

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        const int8x16_t values = table();
        vst1q_f32(panel.scales + place.at, rows.floats(place.i, scale_of));
        unpack_halves(rows, place.i, Codes(panel, place.to * own_block, place.four),
                      [&](uint8x16_t half, size_t, size_t) { return vqtbl1q_s8(values, half); });
    }
};

// Codes are twice a float of four bits, and a scale is a power of two.
struct MXFP4 : Simple {
    static constexpr ggml_type type = GGML_TYPE_MXFP4;
    using Block                     = block_mxfp4;
    template <int n_rows> struct Blocks {
        uint8_t e[n_rows];
        uint8_t qs[n_rows * sizeof(block_mxfp4::qs)];
    };

    template <typename Rows> static void unpack(const Rows & rows, const Place & place, const Panel & panel) {
        constexpr int8_t values[] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
        const int8x16_t  table    = vld1q_s8(values);
        put_powers(rows, place, panel);
        unpack_halves(rows, place.i, Codes(panel, place.to * own_block, place.four),
                      [&](uint8x16_t half, size_t, size_t) { return vqtbl1q_s8(table, half); });
    }

  private:
    // Half of 2^(e - 127); NaN for 255, which says so.
    static float half_power(uint8_t e) {
        const uint32_t bits = e == 255 ? 0x7FC00000 : e < 2 ? 1u << (21 + e) : (e - 1u) << 23;
        float          power;
        std::memcpy(&power, &bits, sizeof(power));
        return power;
    }

    static void put_powers(const Apart<block_mxfp4> & rows, const Place & place, const Panel & panel) {
        for (size_t row = 0; row < 4; ++row) {
            panel.scales[place.at + row] = half_power(rows.block(row, place.i).e);
        }
    }

    template <typename Type, int n_rows, int n_bytes>
    static void put_powers(const Together<Type, n_rows, n_bytes> & rows, const Place & place, const Panel & panel) {
        for (size_t row = 0; row < 4; ++row) {
            panel.scales[place.at + row] = half_power(rows.blocks[place.i].e[4 * rows.which + row]);
        }
    }
};

} // namespace

} // namespace edgekv
