// Weights of two and three bits in blocks of 256, unpacked: codes so small that a byte holds them times the scale of their part. So
// products of all 256 are added up before they are scaled. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/panel_supers.h"

#include <type_traits>

namespace edgekv {

namespace {

struct Folded : Simple {
    static constexpr size_t n_fetches = 2 * n_bands;
    static constexpr size_t part      = n_super;
    static constexpr size_t own_block = n_super;
};

// Codes times a scale, and something more, as long as that fits a byte; two at a time in 16 bits.
struct Fold {
    using Shorts = uint16_t __attribute__((vector_size(sizeof(Wide))));

    Wide scale, more;

    Wide of(Wide codes) const { return (Wide)((Shorts)codes * (Shorts)scale + (Shorts)more); }
};

// Call put_part(part, codes) for the parts of 16 of a block, where codes(group) are those of four numbers, in the two lower bits of each
// byte. `at` finds 32 bytes, each of which has four numbers, from as many parts.
template <typename At, typename PutPart> EDGEKV_INLINE void each_part(const At & at, Ahead & ahead, const PutPart & put_part) {
    for (size_t half = 0; half < 2; ++half) {
        ahead.fetch();
        const EightGroups groups = at(32 * half);
        for (size_t i = 0; i < 8; ++i) {
            put_part(8 * half + i, [&](size_t group) { return moved_bits<2, 0>(groups.of[4 * (i % 2) + group], static_cast<int>(i / 2 * 2)); });
        }
    }
}

struct Q2_K : Folded {
    static constexpr ggml_type type       = GGML_TYPE_Q2_K;
    static constexpr size_t    block      = 32; // two minima
    static constexpr bool      has_fours  = true;
    static constexpr size_t    n_at_once  = 2;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            const auto   block  = [&](size_t row) { return block_of<block_q2_K>(rows[n_band * band + row], i); };
            const Wide   ends   = groups_of([&](size_t row) { return block(row)->qs + 52; }).of[3]; // they end with the block
            const Groups scales = groups_of([&](size_t row) { return block(row)->scales; });
            const auto   at     = [&](size_t offset) { return eight_groups_of([&](size_t row) { return block(row)->qs + offset; }); };
            const auto   fours  = [&](size_t p) { return field_of<8>(scales.of[p / 4], 8 * (p % 4)); };
            unpack_band(floats_of_halves(ends), floats_of_halves(right(ends, 16)), fours, at, band, panel, ahead);
        }
    }

  protected:
    // fours: scale and minimum of a part, four bits each
    template <typename Fours, typename At>
    static EDGEKV_INLINE void unpack_band(WideFloats delta, WideFloats least, const Fours & fours, const At & at, size_t band, const Panel & panel, Ahead & ahead) {
        put(panel.scales + n_band * band, delta);
        put(panel.deltas + n_band * band, least);
        for (size_t pair = 0; pair < 8; ++pair) {
            const Wide minima = field_of<4>(fours(2 * pair), 4) | left(field_of<4>(fours(2 * pair + 1), 4), 16);
            put(panel.minima + pair * n_panel_rows + n_band * band, (WideFloats)minima);
        }
        each_part(at, ahead, [&](size_t p, const auto & codes) {
            const Fold fold = { twice(field_of<4>(fours(p), 0)), all_words(0) };
            for (size_t g = 0; g < 4; ++g) {
                put(panel.codes, 4 * p + g, band, fold.of(codes(g)));
            }
        });
    }
};

struct Q2_Kx8 : Q2_K {
    static constexpr bool interleaved = true;

    struct Block {
        ggml_half deltas[8], least[8];
        uint8_t   fours[8][8][2]; // of two parts of each row
        uint8_t   codes[8 * QK_K / 4];
    };

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            const Eights eights(rows + n_band * band);
            const auto   halves = [&](auto Block::*member) { return eights.halves([&](const char * block) { return block_of<Block>(block, i)->*member; }); };
            const auto   at     = [&](size_t offset) {
                return eight_groups_of(eights, [&](const char * block) { return block_of<Block>(block, i)->codes + 8 * offset; });
            };
            const auto fours = [&](size_t p) {
                return field_of<8>(eights.shorts([&](const char * block) { return block_of<Block>(block, i)->fours[p / 2]; }), 8 * (p % 2));
            };
            unpack_band(halves(&Block::deltas), halves(&Block::least), fours, at, band, panel, ahead);
        }
    }
};

// Where products are added up by pairs in 16 bits, more of them fit if scales stay apart.
struct Q3_K : std::conditional_t<adds_four, Folded, Super> {
    static constexpr ggml_type type       = GGML_TYPE_Q3_K;
    static constexpr size_t    n_fetches  = Folded::n_fetches;
    static constexpr size_t    part       = adds_four ? n_super : 16;
    static constexpr size_t    block      = part;
    static constexpr int32_t   offset     = adds_four ? 124 : 0; // a code less 4, times a scale, is -124 to 128
    static constexpr bool      has_minima = !adds_four;
    static constexpr size_t    n_at_once  = 4;

    static __attribute__((noinline)) void unpack(const char * const * rows, size_t i, const Panel & panel, Ahead & ahead) {
        for (size_t band = 0; band < n_bands; ++band) {
            const auto        block = [&](size_t row) { return block_of<block_q3_K>(rows[n_band * band + row], i); };
            const auto        at    = [&](size_t offset) { return eight_groups_of([&](size_t row) { return block(row)->qs + offset; }); };
            const EightGroups third = eight_groups_of([&](size_t row) { return block(row)->hmask; }); // bits
            const Scales      scales([&](size_t row) { return block(row)->qs + 62; });
            put((adds_four ? panel.scales : panel.deltas) + n_band * band, scales.delta);
            each_part(at, ahead, [&](size_t p, const auto & lower) {
                const Wide scale = scales.of(p);
                const Wide more  = (Wide)(offset - 4 * (Signs)scale); // a byte
                const Fold fold  = { twice(scale), twice(more | left(more, 8)) };
                if (!adds_four) {
                    const size_t to = p * n_panel_rows + n_band * band;
                    Super::put_scales(panel.scales + to, scale, scales.delta);
                    put(panel.minima + to, floats_of(scale) * scales.delta * -4.0f);
                }
                for (size_t g = 0; g < 4; ++g) {
                    const Wide codes = lower(g) | moved_bits<1, 2>(third.of[4 * (p % 2) + g], static_cast<int>(p / 2));
                    put(panel.codes, 4 * p + g, band, adds_four ? fold.of(codes) : codes);
                }
            });
        }
    }

  private:
    // Sixteen scales of six bits in the 12 bytes before what they are multiplied by.
    struct Scales {
        Wide       sixes[4]; // of four parts
        WideFloats delta;

        template <typename At> EDGEKV_INLINE explicit Scales(const At & two_before) {
            const Groups bytes   = groups_of(two_before);
            const auto   word    = [&](size_t j) { return right(bytes.of[j], 16) | left(bytes.of[j + 1], 16); };
            const Wide   lower[] = { word(0), word(1) }, upper = word(2);
            for (size_t j = 0; j < 4; ++j) {
                sixes[j] = moved_bits<4, 0>(lower[j % 2], j < 2 ? 0 : 4) | moved_bits<2>(upper, static_cast<int>(2 * j));
            }
            delta = floats_of_halves(right(bytes.of[3], 16));
        }

        Wide of(size_t p) const { return (Wide)((Signs)field_of<8>(sixes[p / 4], 8 * (p % 4)) - 32); }
    };
};

} // namespace

} // namespace edgekv
