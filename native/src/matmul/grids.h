// Weights whose magnitudes are looked up in ggml's grids, eight or four at a time. All of it is each source's own
// (kernels/vectors.h).
#pragma once

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace edgekv {

namespace {

// The signs of 32 numbers, of which each eight have seven bits: the number of negative ones is even.
inline uint32_t even_signs(uint32_t bits) {
    uint32_t signs = 0;
    for (int eight = 0; eight < 4; ++eight) {
        signs |= static_cast<uint32_t>(ksigns_iq2xs[bits >> 7 * eight & 127]) << 8 * eight;
    }
    return signs;
}

inline uint32_t word_of(const uint8_t * bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof(word));
    return word;
}

inline uint64_t together(uint32_t first, uint32_t second) { return first | static_cast<uint64_t>(second) << 32; }

inline uint32_t four_bits(uint8_t byte, size_t upper) { return upper == 0 ? byte & 15 : byte >> 4; }

// What types say of a block: its parts, each of which has a scale of 2 * four bits + 1 times `unit` and the block's own; eight(block, i),
// the magnitudes of eight numbers, none above `largest`; and signs(block, i), a bit for each of 32 numbers that says it is negative.

struct Iq2Xxs {
    using Block = block_iq2_xxs;
    static constexpr ggml_type type    = GGML_TYPE_IQ2_XXS;
    static constexpr size_t    part    = 32;
    static constexpr int       largest = 43;
    static constexpr float     unit    = 0.125f;

    static uint32_t signs_and_scale(const Block & block, size_t i) { return block.qs[4 * i + 2] | static_cast<uint32_t>(block.qs[4 * i + 3]) << 16; }
    static uint32_t scale(const Block & block, size_t part) { return signs_and_scale(block, part) >> 28; }
    static uint32_t signs(const Block & block, size_t i) { return even_signs(signs_and_scale(block, i)); }
    static uint64_t eight(const Block & block, size_t i) { return iq2xxs_grid[block.qs[i / 4 * 4 + i % 4 / 2] >> 8 * (i % 2) & 255]; }
};

struct Iq2Xs {
    using Block = block_iq2_xs;
    static constexpr ggml_type type    = GGML_TYPE_IQ2_XS;
    static constexpr size_t    part    = 16;
    static constexpr int       largest = 43;
    static constexpr float     unit    = 0.125f;

    static uint32_t scale(const Block & block, size_t part) { return four_bits(block.scales[part / 2], part % 2); }
    static uint32_t signs(const Block & block, size_t i) {
        const uint16_t * four = block.qs + 4 * i;
        return even_signs(four[0] >> 9 | four[1] >> 9 << 7 | four[2] >> 9 << 14 | four[3] >> 9 << 21);
    }
    static uint64_t eight(const Block & block, size_t i) { return iq2xs_grid[block.qs[i] & 511]; }
};

struct Iq2S {
    using Block = block_iq2_s;
    static constexpr ggml_type type    = GGML_TYPE_IQ2_S;
    static constexpr size_t    part    = 16;
    static constexpr int       largest = 43;
    static constexpr float     unit    = 0.125f;

    static uint32_t scale(const Block & block, size_t part) { return four_bits(block.scales[part / 2], part % 2); }
    static uint32_t signs(const Block & block, size_t i) { return word_of(block.qs + QK_K / 8 + 4 * i); }
    static uint64_t eight(const Block & block, size_t i) { return iq2s_grid[block.qs[i] | (block.qh[i / 4] >> 2 * (i % 4) & 3) << 8]; }
};

struct Iq3Xxs {
    using Block = block_iq3_xxs;
    static constexpr ggml_type type    = GGML_TYPE_IQ3_XXS;
    static constexpr size_t    part    = 32;
    static constexpr int       largest = 62;
    static constexpr float     unit    = 0.25f;

    static uint32_t signs_and_scale(const Block & block, size_t i) { return word_of(block.qs + QK_K / 4 + 4 * i); }
    static uint32_t scale(const Block & block, size_t part) { return signs_and_scale(block, part) >> 28; }
    static uint32_t signs(const Block & block, size_t i) { return even_signs(signs_and_scale(block, i)); }
    static uint64_t eight(const Block & block, size_t i) { return together(iq3xxs_grid[block.qs[2 * i]], iq3xxs_grid[block.qs[2 * i + 1]]); }
};

struct Iq3S {
    using Block = block_iq3_s;
    static constexpr ggml_type type    = GGML_TYPE_IQ3_S;
    static constexpr size_t    part    = 32;
    static constexpr int       largest = 15;
    static constexpr float     unit    = 1.0f;

    static uint32_t scale(const Block & block, size_t part) { return four_bits(block.scales[part / 2], part % 2); }
    static uint32_t signs(const Block & block, size_t i) { return word_of(block.signs + 4 * i); }
    static uint32_t four(const Block & block, size_t i) { return iq3s_grid[block.qs[i] | (block.qh[i / 8] >> i % 8 & 1) << 8]; }
    static uint64_t eight(const Block & block, size_t i) { return together(four(block, 2 * i), four(block, 2 * i + 1)); }
};

} // namespace

} // namespace edgekv
