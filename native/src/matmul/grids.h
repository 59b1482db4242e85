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

inline uint32_t word_of(const void * bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof(word));
    return word;
}

inline uint32_t four_bits(uint8_t byte, size_t upper) { return upper == 0 ? byte & 15 : byte >> 4; }

// What types say of a block: its parts, each of which has a scale of 2 * four bits + 1 times `unit` and the block's own; eight(block, i) or
// four(block, i), the magnitudes of so many numbers, none above `largest`; and their signs. signs(block, i) has a bit for each of 32
// numbers that says it is negative. seven(block, i) has one for each of the first seven of eight; the number of negative ones is even.

struct Iq2Xxs {
    using Block = block_iq2_xxs;
    static constexpr ggml_type type      = GGML_TYPE_IQ2_XXS;
    static constexpr size_t    part      = 32;
    static constexpr int       largest   = 43;
    static constexpr float     unit      = 0.125f;
    static constexpr bool      has_even  = true;
    static constexpr bool      has_bytes = false; // of scales
    static constexpr bool      has_fours = false;

    static uint32_t signs_and_scale(const Block & block, size_t i) { return word_of(block.qs + 4 * i + 2); }
    static uint32_t scale(const Block & block, size_t part) { return signs_and_scale(block, part) >> 28; }
    static uint32_t seven(const Block & block, size_t i) { return signs_and_scale(block, i / 4) >> 7 * (i % 4) & 127; }
    static uint64_t eight(const Block & block, size_t i) { return iq2xxs_grid[reinterpret_cast<const uint8_t *>(block.qs + i / 4 * 4)[i % 4]]; }
};

struct Iq2Xs {
    using Block = block_iq2_xs;
    static constexpr ggml_type type      = GGML_TYPE_IQ2_XS;
    static constexpr size_t    part      = 16;
    static constexpr int       largest   = 43;
    static constexpr float     unit      = 0.125f;
    static constexpr bool      has_even  = true;
    static constexpr bool      has_bytes = true; // of scales
    static constexpr bool      has_fours = false;

    static uint32_t scale(const Block & block, size_t part) { return four_bits(block.scales[part / 2], part % 2); }
    static uint32_t seven(const Block & block, size_t i) { return block.qs[i] >> 9; }
    static uint64_t eight(const Block & block, size_t i) { return iq2xs_grid[block.qs[i] & 511]; }
};

struct Iq2S {
    using Block = block_iq2_s;
    static constexpr ggml_type type      = GGML_TYPE_IQ2_S;
    static constexpr size_t    part      = 16;
    static constexpr int       largest   = 43;
    static constexpr float     unit      = 0.125f;
    static constexpr bool      has_even  = false;
    static constexpr bool      has_bytes = true; // of scales
    static constexpr bool      has_fours = false;

    static uint32_t scale(const Block & block, size_t part) { return four_bits(block.scales[part / 2], part % 2); }
    static uint32_t signs(const Block & block, size_t i) { return word_of(block.qs + QK_K / 8 + 4 * i); }
    static uint64_t eight(const Block & block, size_t i) { return iq2s_grid[block.qs[i] | (block.qh[i / 4] << (8 - 2 * (i % 4)) & 0x300)]; }
};

struct Iq3Xxs {
    using Block = block_iq3_xxs;
    static constexpr ggml_type type      = GGML_TYPE_IQ3_XXS;
    static constexpr size_t    part      = 32;
    static constexpr int       largest   = 62;
    static constexpr float     unit      = 0.25f;
    static constexpr bool      has_even  = true;
    static constexpr bool      has_bytes = false; // of scales
    static constexpr bool      has_fours = true;

    static uint32_t signs_and_scale(const Block & block, size_t i) { return word_of(block.qs + QK_K / 4 + 4 * i); }
    static uint32_t scale(const Block & block, size_t part) { return signs_and_scale(block, part) >> 28; }
    static uint32_t seven(const Block & block, size_t i) { return signs_and_scale(block, i / 4) >> 7 * (i % 4) & 127; }
    static uint32_t four(const Block & block, size_t i) { return iq3xxs_grid[block.qs[i]]; }
};

struct Iq3S {
    using Block = block_iq3_s;
    static constexpr ggml_type type      = GGML_TYPE_IQ3_S;
    static constexpr size_t    part      = 32;
    static constexpr int       largest   = 15;
    static constexpr float     unit      = 1.0f;
    static constexpr bool      has_even  = false;
    static constexpr bool      has_bytes = true; // of scales
    static constexpr bool      has_fours = true;

    static uint32_t scale(const Block & block, size_t part) { return four_bits(block.scales[part / 2], part % 2); }
    static uint32_t signs(const Block & block, size_t i) { return word_of(block.signs + 4 * i); }
    static uint32_t at(const Block & block, size_t i) { return block.qs[i] | (block.qh[i / 8] << (8 - i % 8) & 0x100); } // of the grid
    static uint32_t four(const Block & block, size_t i) { return iq3s_grid[at(block, i)]; }
};

} // namespace

} // namespace edgekv
