// Weights in blocks of 32 with one scale, unpacked. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/panel.h"

namespace edgekv {

namespace {

// What all types have in common where activations have a scale for each block of 32.
struct Simple {
    static constexpr size_t n_fetches   = n_bands; // as often as the rows ahead are fetched while a block of each row is unpacked
    static constexpr size_t block       = n_block; // numbers that share a BlockFactor
    static constexpr size_t part        = n_block; // whose products are added up before they are scaled
    static constexpr size_t own_block   = n_block; // of a block of the file
    static constexpr int32_t offset     = 0;
    static constexpr bool   has_deltas  = false;
    static constexpr bool   is_signed   = false; // codes are signed where adds_four is false
    static constexpr bool   has_minima  = false;
    static constexpr bool   has_fours   = false; // minima are whole numbers for 16 numbers each, times something
    static constexpr bool   interleaved = false;
};

// Of a band, a block that ends with 16 bytes of codes: these, the 32 bits in the lower half of which is a scale and in the upper one perhaps
// a minimum, and fifth bits.
template <typename Block> struct Loaded {
    Groups codes;
    Wide   factors;
    Wide   fifth_bits;

    EDGEKV_INLINE Loaded(const char * const * rows, size_t i) {
        constexpr bool has_fifth = sizeof(Block) >= 22, has_byte = sizeof(Block) % 2 == 1;
#if defined(__AVX512VNNI__)
        constexpr size_t n_missing = 32 - sizeof(Block);
        const auto       end = [&](size_t row) { return reinterpret_cast<const char *>(block_of<Block>(rows[row], i)) - n_missing; };
        const auto       all = eight_groups_of(end, ~0u << n_missing);
        std::memcpy(&codes, all.of + 4, sizeof(codes));
        fifth_bits = all.of[3];
        factors    = right(all.of[has_fifth ? 2 : 3], has_byte ? 24 : sizeof(Block) % 4 == 0 ? 0 : 16);
#else
        codes   = groups_of([&](size_t row) { return block_of<Block>(rows[row], i)->qs; });
        factors = groups_of([&](size_t row) { return block_of<Block>(rows[row], i); }).of[0] & all_words(has_byte ? 255 : -1);
        if constexpr (has_fifth) {
            fifth_bits = groups_of([&](size_t row) { return block_of<Block>(rows[row], i)->qh; }).of[0];
        }
#endif
    }
};

// Codes of half a byte, the first half of a block in the lower ones; `change` makes of four the codes of group `group`.
template <typename Change>
EDGEKV_INLINE void unpack_halves(const Groups & groups, size_t band, uint8_t * codes, const Change & change) {
    for (size_t g = 0; g < 4; ++g) {
        put(codes, g, band, change(g, low_half(groups.of[g])));
        put(codes, 4 + g, band, change(4 + g, high_half(groups.of[g])));
    }
}

template <typename Block, bool has_minima = false, typename Change>
EDGEKV_INLINE void unpack_simple(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead, const Change & change) {
    for (size_t band = 0; band < n_bands; ++band) {
        ahead.fetch();
        const Loaded<Block> block(rows + n_band * band, i);
        put(panel.scales + n_band * band, floats_of_halves(block.factors));
        if (has_minima) {
            put(panel.minima + n_band * band, floats_of_halves(right(block.factors, 16)));
        }
        unpack_halves(block.codes, band, panel.codes, [&](size_t group, Wide codes) { return change(block, group, codes); });
    }
}
constexpr auto unchanged = [](const auto &, size_t, Wide codes) { return codes; };

struct Q4_0 : Simple {
    static constexpr ggml_type type      = GGML_TYPE_Q4_0;
    static constexpr int32_t   offset    = 8;
    static constexpr size_t    n_at_once = 8; // groups whose products are added up in 16 bits

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        unpack_simple<block_q4_0>(rows, i, panel, ahead, unchanged);
    }
};

// The blocks of 8 rows side by side.
template <typename Block> struct Eight {
    ggml_half scales[8];
    uint8_t   codes[8 * sizeof(Block::qs)];
};

// Where ggml has interleaved 8 rows, 8 bytes of each at a time: 16 of each.
template <typename At> EDGEKV_INLINE Groups groups_of(const Eights & eights, const At & at) {
    Groups groups;
    for (size_t i = 0; i < 2; ++i) {
        eights.words([&](const char * block) { return at(block) + 64 * i; }, groups.of[2 * i], groups.of[2 * i + 1]);
    }
    return groups;
}

// The same: 32 of each.
template <typename At> EDGEKV_INLINE EightGroups eight_groups_of(const Eights & eights, const At & at) {
    EightGroups groups;
    for (size_t i = 0; i < 4; ++i) {
        eights.words([&](const char * block) { return at(block) + 64 * i; }, groups.of[2 * i], groups.of[2 * i + 1]);
    }
    return groups;
}

// Put the scales of block `i` of a band, and return its codes.
template <typename Block> EDGEKV_INLINE Groups unpack_eights(const char * const * rows, size_t i, size_t band, const Panel & panel) {
    const Eights eights(rows);
    put(panel.scales + n_band * band, eights.halves([&](const char * block) { return block_of<Eight<Block>>(block, i)->scales; }));
    return groups_of(eights, [&](const char * block) { return block_of<Eight<Block>>(block, i)->codes; });
}

struct Q4_0x8 : Q4_0 {
    static constexpr bool interleaved = true;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            ahead.fetch();
            Groups groups = unpack_eights<block_q4_0>(rows + n_band * band, i, band, panel);
            for (Wide & group : groups.of) {
                group ^= all_bytes(0x88); // ggml's codes are signed here
            }
            unpack_halves(groups, band, panel.codes, [](size_t, Wide codes) { return codes; });
        }
    }
};

struct Q4_1 : Simple {
    static constexpr ggml_type type       = GGML_TYPE_Q4_1;
    static constexpr bool      has_minima = true;
    static constexpr size_t    n_at_once  = 8;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        unpack_simple<block_q4_1, has_minima>(rows, i, panel, ahead, unchanged);
    }
};

// Codes of four bits with the fifth bits of their group: bit b of those at bit 4 of byte b.
constexpr auto with_fifth_bits = [](const auto & block, size_t group, Wide codes) {
    const Wide four  = right(block.fifth_bits, static_cast<int>(4 * group)) & all_words(15);
    const auto apart = (Words)four * (1u << 4 | 1u << 11 | 1u << 18 | 1u << 25);
    return codes | ((Wide)apart & all_bytes(16));
};

struct Q5_0 : Simple {
    static constexpr ggml_type type      = GGML_TYPE_Q5_0;
    static constexpr int32_t   offset    = 16;
    static constexpr size_t    n_at_once = 4;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        unpack_simple<block_q5_0>(rows, i, panel, ahead, with_fifth_bits);
    }
};

struct Q5_1 : Simple {
    static constexpr ggml_type type       = GGML_TYPE_Q5_1;
    static constexpr bool      has_minima = true;
    static constexpr size_t    n_at_once  = 4;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        unpack_simple<block_q5_1, has_minima>(rows, i, panel, ahead, with_fifth_bits);
    }
};

// Codes from -128 on: as they are where a sign may be moved to the activations, or 128 more.
struct Signed : Simple {
    static constexpr size_t  n_at_once = 1;
    static constexpr bool    is_signed = !adds_four;
    static constexpr int32_t offset    = adds_four ? 128 : 0;

    static Wide code_of(Wide value) { return adds_four ? value ^ all_bytes(128) : value; }
};

struct Q8_0 : Signed {
    static constexpr ggml_type type = GGML_TYPE_Q8_0;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            ahead.fetch();
            const auto block = [&](size_t row) { return block_of<block_q8_0>(rows[n_band * band + row], i); };
            put(panel.scales + n_band * band, floats_of_halves(groups_of(block).of[0]));
            const EightGroups groups = eight_groups_of([&](size_t row) { return block(row)->qs; });
            for (size_t g = 0; g < 8; ++g) {
                put(panel.codes, g, band, code_of(groups.of[g]));
            }
        }
    }
};

struct IQ4_NL : Signed {
    static constexpr ggml_type type = GGML_TYPE_IQ4_NL;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        unpack_simple<block_iq4_nl>(rows, i, panel, ahead, [](const auto &, size_t, Wide codes) { return value_of(codes); });
    }

    static __m128i values() { return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113); }

    static Wide value_of(Wide codes) { return code_of(looked_up(each_quarter(values()), codes)); }
};

struct IQ4_NLx8 : IQ4_NL {
    static constexpr bool interleaved = true;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            ahead.fetch();
            unpack_halves(unpack_eights<block_iq4_nl>(rows + n_band * band, i, band, panel), band, panel.codes, [](size_t, Wide codes) { return value_of(codes); });
        }
    }
};

// Codes are twice a float of four bits, and a scale is a power of two.
struct MXFP4 : Simple {
    static constexpr ggml_type type      = GGML_TYPE_MXFP4;
    static constexpr int32_t   offset    = 12;
    static constexpr size_t    n_at_once = 4;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            ahead.fetch();
            const Loaded<block_mxfp4> block(rows + n_band * band, i);
            put(panel.scales + n_band * band, half_powers_of(block.factors));
            unpack_halves(block.codes, band, panel.codes, value_of);
        }
    }

  protected:
    static Wide value_of(size_t, Wide codes) {
        return looked_up(each_quarter(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)), codes);
    }

    // Half of 2^(e - 127) for exponents of eight bits, which is denormal for 0 and 1; NaN for 255, which says so.
    static WideFloats half_powers_of(Wide exponents) {
        const auto  e     = (Words)exponents;
        const Words power = e < 2 ? (e + 1) << 21 : (e - 1) << 23;
        return (WideFloats)(e == 255 ? Words{} + 0x7FC00000 : power);
    }
};

struct MXFP4x8 : MXFP4 {
    static constexpr bool interleaved = true;

    struct Block {
        uint8_t exponents[8];
        uint8_t codes[8 * sizeof(block_mxfp4::qs)];
    };

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            ahead.fetch();
            const Eights eights(rows + n_band * band);
            put(panel.scales + n_band * band, half_powers_of(eights.first_bytes([&](const char * block) { return load16(block_of<Block>(block, i)); })));
            unpack_halves(groups_of(eights, [&](const char * block) { return block_of<Block>(block, i)->codes; }), band, panel.codes, value_of);
        }
    }
};

} // namespace

} // namespace edgekv
