// Weights in blocks of 256, whose parts have whole numbers for scales, unpacked. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/panel_blocks.h"

namespace edgekv {

namespace {

struct Super {
    static constexpr size_t n_fetches  = 4 * n_bands;
    static constexpr size_t block      = n_block;
    static constexpr size_t part       = n_block;
    static constexpr size_t own_block  = n_super;
    static constexpr int32_t offset    = 0;
    static constexpr bool   has_deltas = true;
    static constexpr bool   is_signed  = false;
    static constexpr bool   has_minima = true;
    static constexpr bool   has_fours  = false;
    static constexpr bool   interleaved = false;
    static constexpr bool   is_whole   = !adds_four; // scales, and so the sums over a block of 256

    static void put_scales(float * dst, Wide scales, WideFloats delta) {
        put(dst, is_whole ? (WideFloats)twice(scales) : floats_of(scales) * delta);
    }
};

// Eight scales and half minima of six bits each, behind what both are multiplied by.
template <typename Block> EDGEKV_INLINE void put_sixes(const char * const * rows, size_t i, const Panel & panel) {
    const Wide six = all_bytes(63), four = all_bytes(15), two = all_bytes(48), byte = all_words(255);
    for (size_t band = 0; band < n_bands; ++band) {
        const Groups     head  = groups_of([&](size_t row) { return block_of<Block>(rows[n_band * band + row], i); });
        const WideFloats delta = floats_of_halves(head.of[0]), least = WideFloats{} - floats_of_halves(right(head.of[0], 16));
        const Wide       upper = head.of[3];
        const Wide scales[] = { head.of[1] & six, (upper & four) | (right(head.of[1], 2) & two) };
        const Wide minima[] = { head.of[2] & six, (right(upper, 4) & four) | (right(head.of[2], 2) & two) };
        put(panel.deltas + n_band * band, delta);
        for (int part = 0; part < 8; ++part) {
            const size_t at = part * n_panel_rows + n_band * band;
            Super::put_scales(panel.scales + at, right(scales[part / 4], 8 * (part % 4)) & byte, delta);
            put(panel.minima + at, floats_of(right(minima[part / 4], 8 * (part % 4)) & byte) * least);
        }
    }
}

// `change` makes the codes of a part of 32 of the half bytes of its group; `at` finds the 32 bytes of a pair of parts.
template <typename At, typename Change> EDGEKV_INLINE void unpack_parts(const At & at, size_t band, uint8_t * codes, Ahead & ahead, const Change & change) {
    for (size_t pair = 0; pair < 4; ++pair) {
        ahead.fetch();
        const EightGroups groups = at(pair);
        for (size_t g = 0; g < 8; ++g) {
            put(codes, 16 * pair + g, band, change(2 * pair, g, low_half(groups.of[g])));
            put(codes, 16 * pair + 8 + g, band, change(2 * pair + 1, g, high_half(groups.of[g])));
        }
    }
}

template <typename Block, typename Change>
EDGEKV_INLINE void unpack_parts(const char * const * rows, size_t i, size_t band, uint8_t * codes, Ahead & ahead, const Change & change) {
    const auto at = [&](size_t pair) {
        return eight_groups_of([&](size_t row) { return block_of<Block>(rows[n_band * band + row], i)->qs + 32 * pair; });
    };
    unpack_parts(at, band, codes, ahead, change);
}

struct Q4_K : Super {
    static constexpr ggml_type type      = GGML_TYPE_Q4_K;
    static constexpr size_t    n_at_once = 8;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        put_sixes<block_q4_K>(rows, i, panel);
        for (size_t band = 0; band < n_bands; ++band) {
            unpack_parts<block_q4_K>(rows, i, band, panel.codes, ahead, [](size_t, size_t, Wide codes) { return codes; });
        }
    }
};

// Eight scales, and eight minima, of six bits each in 12 bytes.
inline __m128i sixes_of(const uint8_t * bytes) {
    const __m128i words = load16(bytes); // codes follow
    const __m128i lower = _mm_srlv_epi32(_mm_shuffle_epi32(words, 0b10'01'10'00), _mm_setr_epi32(0, 0, 0, 4));
    const __m128i upper = _mm_srli_epi32(_mm_shuffle_epi32(words, 0b01'01'00'00), 2);
    return _mm_or_si128(_mm_and_si128(lower, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                        _mm_and_si128(upper, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}

struct Q4_Kx8 : Q4_K {
    static constexpr bool interleaved = true;

    struct Block {
        ggml_half deltas[8], least[8];
        uint8_t   sixes[8][12]; // of each part: scales and minima of 8 rows
        uint8_t   codes[8 * QK_K / 2];
    };

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            const Eights     eights(rows + n_band * band);
            const auto       halves = [&](auto Block::*member) { return eights.halves([&](const char * block) { return block_of<Block>(block, i)->*member; }); };
            const WideFloats delta = halves(&Block::deltas), least = WideFloats{} - halves(&Block::least);
            put(panel.deltas + n_band * band, delta);
            for (size_t part = 0; part < 8; ++part) {
                const size_t at    = part * n_panel_rows + n_band * band;
                const auto   sixes = [&](const char * block) { return sixes_of(block_of<Block>(block, i)->sixes[part]); };
                put_scales(panel.scales + at, eights.first_bytes(sixes), delta);
                put(panel.minima + at, floats_of(eights.last_bytes(sixes)) * least);
            }
            const auto codes = [&](size_t pair) {
                return eight_groups_of(eights, [&](const char * block) { return block_of<Block>(block, i)->codes + 256 * pair; });
            };
            unpack_parts(codes, band, panel.codes, ahead, [](size_t, size_t, Wide codes) { return codes; });
        }
    }
};

struct Q5_K : Super {
    static constexpr ggml_type type      = GGML_TYPE_Q5_K;
    static constexpr size_t    n_at_once = 4;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        put_sixes<block_q5_K>(rows, i, panel);
        for (size_t band = 0; band < n_bands; ++band) {
            const EightGroups fifth = eight_groups_of([&](size_t row) { return block_of<block_q5_K>(rows[n_band * band + row], i)->qh; });
            unpack_parts<block_q5_K>(rows, i, band, panel.codes, ahead, [&](size_t part, size_t group, Wide low) { // bit `part` of each byte
                return low | moved_bits<1>(fifth.of[group], static_cast<int>(part));
            });
        }
    }
};

struct Q6_K : Super {
    static constexpr ggml_type type       = GGML_TYPE_Q6_K;
    static constexpr size_t    n_at_once  = 2;
    static constexpr size_t    block      = 16;
    static constexpr size_t    part       = 16;
    static constexpr int32_t   offset     = adds_four ? 32 : 0;
    static constexpr bool      has_minima = !adds_four; // there an offset would have to be multiplied by scales
    static constexpr bool      is_whole   = true;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            put_signed(rows, i, band, panel);
            unpack_half(rows, i, band, 0, panel.codes, ahead);
            unpack_half(rows, i, band, 1, panel.codes, ahead);
        }
    }

  private:
    // Sixteen scales of a signed byte, before what they are multiplied by.
    static EDGEKV_INLINE void put_signed(const char * const * rows, size_t i, size_t band, const Panel & panel) {
        const auto   block  = [&](size_t row) { return block_of<block_q6_K>(rows[n_band * band + row], i); };
        const Groups     scales = groups_of([&](size_t row) { return block(row)->scales; });
        const Groups     ends   = groups_of([&](size_t row) { return block(row)->scales + 2; }); // they end with the block
        const WideFloats delta  = floats_of_halves(right(ends.of[3], 16));
        const WideFloats least  = delta * -32.0f;
        put(panel.deltas + n_band * band, delta);
        for (int part = 0; part < 16; ++part) {
            const size_t at    = part * n_panel_rows + n_band * band;
            const Wide   scale = (Wide)((Signs)left(scales.of[part / 4], 24 - 8 * (part % 4)) >> 24);
            put(panel.scales + at, (WideFloats)(adds_four ? scale : twice(scale)));
            if (has_minima) {
                put(panel.minima + at, floats_of(scale) * least);
            }
        }
    }

    // 128 weights: four parts of 32, two of which share bytes of lower halves, and all share bytes of upper bits.
    static EDGEKV_INLINE void unpack_half(const char * const * rows, size_t i, size_t band, size_t half, uint8_t * codes, Ahead & ahead) {
        const auto        block  = [&](size_t row) { return block_of<block_q6_K>(rows[n_band * band + row], i); };
        const EightGroups upper  = eight_groups_of([&](size_t row) { return block(row)->qh + 32 * half; });
        for (size_t part = 0; part < 2; ++part) {
            ahead.fetch();
            const EightGroups lower = eight_groups_of([&](size_t row) { return block(row)->ql + 64 * half + 32 * part; });
            for (size_t g = 0; g < 8; ++g) {
                const size_t group = 32 * half + 8 * part + g;
                const int    from  = static_cast<int>(2 * part);
                put(codes, group, band, low_half(lower.of[g]) | moved_bits<2>(upper.of[g], from));
                put(codes, group + 16, band, high_half(lower.of[g]) | moved_bits<2>(upper.of[g], from + 4));
            }
        }
    }
};

struct IQ4_XS : Super {
    static constexpr ggml_type type       = GGML_TYPE_IQ4_XS;
    static constexpr size_t    n_at_once  = Signed::n_at_once;
    static constexpr int32_t   offset     = Signed::offset;
    static constexpr bool      is_signed  = Signed::is_signed;
    static constexpr bool      has_minima = false;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            const auto block = [&](size_t row) { return block_of<block_iq4_xs>(rows[n_band * band + row], i); };
            put_signed(groups_of(block), band, panel);
            for (size_t pair = 0; pair < 4; ++pair) { // of parts, with 16 bytes each
                ahead.fetch();
                const EightGroups groups = eight_groups_of([&](size_t row) { return block(row)->qs + 32 * pair; });
                for (size_t g = 0; g < 8; ++g) {
                    const size_t group = 16 * pair + 8 * (g / 4) + g % 4;
                    put(panel.codes, group, band, IQ4_NL::value_of(low_half(groups.of[g])));
                    put(panel.codes, group + 4, band, IQ4_NL::value_of(high_half(groups.of[g])));
                }
            }
        }
    }

  private:
    // Eight scales of six bits: the upper two of each lie behind what all are multiplied by, and the lower four in the word that follows.
    static EDGEKV_INLINE void put_signed(const Groups & head, size_t band, const Panel & panel) {
        const WideFloats delta = floats_of_halves(head.of[0]);
        put(panel.deltas + n_band * band, delta);
        for (size_t p = 0; p < 8; ++p) {
            const Wide six = field_of<4>(head.of[1], 4 * p) | left(field_of<2>(head.of[0], 16 + 2 * p), 4);
            put_scales(panel.scales + p * n_panel_rows + n_band * band, (Wide)((Signs)six - 32), delta);
        }
    }
};

} // namespace

} // namespace edgekv
