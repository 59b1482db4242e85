// Weights of each type, unpacked: some rows of them, in the order in which four numbers of a row are multiplied at once. All of it is
// each source's own (kernels/vectors.h).
#pragma once

#include "matmul/band.h"
#include "matmul/mul_mat.h"
#include "matmul/products.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstring>

namespace edgekv {

namespace {

// A weight is scale * (code - offset) + minimum, or delta times that if scales are whole numbers.
struct Panel {
    uint8_t * codes;  // (depth / 4, n_panel_rows, 4)
    float *   scales; // (depth / block, n_panel_rows); whole numbers are int32_t, or pairs of equal int16_t where pairs are added up
    float *   minima; // (depth / block, n_panel_rows)
    float *   deltas; // (depth / 256, n_panel_rows)
};

// Where a register cannot add up products of four bytes, pairs of products are added up in 16 bits, as long as they fit.
#if defined(EDGEKV_DOT4)
constexpr bool adds_four = true;
#else
constexpr bool adds_four = false;
#endif

// Rows that are unpacked together: two registers of AVX-512, or of AVX2. So each four numbers of a column that are loaded are multiplied
// twice, and loads do not hold up the multiplications.
#if defined(__AVX512VNNI__) || defined(EDGEKV_DOT4_EMULATED)
constexpr size_t n_panel_rows = 32;
#else
constexpr size_t n_panel_rows = 16;
#endif
constexpr size_t panel_depth = n_panel_weights / n_panel_rows, n_bands = n_panel_rows / n_band;
static_assert(EDGEKV_ROWS_TOGETHER % n_panel_rows == 0, "panels are whole");

constexpr size_t n_block = 32, n_super = 256, n_group = 4 * n_panel_rows; // a group: 4 numbers of each row

inline Wide low_half(Wide bytes) { return bytes & all_bytes(15); }
inline Wide high_half(Wide bytes) { return low_half(right(bytes, 4)); }

// Bits `from` and up of every byte, n_bits of them, moved to bit 4.
template <int n_bits> inline Wide upper_bits(Wide bytes, int from) {
    return (from < 4 ? left(bytes, 4 - from) : right(bytes, from - 4)) & all_bytes(((1 << n_bits) - 1) << 4);
}

inline void put(uint8_t * codes, size_t group, size_t band, Wide value) {
    std::memcpy(codes + group * n_group + band * sizeof(Wide), &value, sizeof(value));
}

inline void put(float * dst, WideFloats values) { std::memcpy(dst, &values, sizeof(values)); }

template <typename Block> inline const Block * block_of(const char * row, size_t i) { return reinterpret_cast<const Block *>(row) + i; }

// The rows that follow, which are fetched into the second cache meanwhile. They are short: a processor finds no stream in them.
class Ahead {
  public:
    Ahead() = default; // none

    // A part of n_bytes of each of n rows, in n_steps.
    Ahead(const char * first, size_t row_bytes, size_t n_bytes, size_t n, size_t n_steps)
        : row_(first), row_bytes_(row_bytes), n_bytes_(n_bytes), n_left_(n * ((n_bytes + line - 1) / line)), n_at_once_(n_left_ / n_steps + 1) {}

    void fetch() {
        if (__builtin_expect(n_left_ == 0, 1)) { // as for all tiles but the first
            return;
        }
        for (size_t i = 0; i < n_at_once_ && n_left_ > 0; ++i, --n_left_) {
            _mm_prefetch(row_ + at_, _MM_HINT_T1);
            at_ += line;
            if (at_ >= n_bytes_) {
                at_ = 0;
                row_ += row_bytes_;
            }
        }
    }

  private:
    static constexpr size_t line = 64;

    const char * row_       = nullptr;
    size_t       row_bytes_ = 0, n_bytes_ = 0, n_left_ = 0, n_at_once_ = 0;
    size_t       at_ = 0;
};

// ---- blocks of 32 with one scale ----

// What all types have in common where activations have a scale for each block of 32.
struct Simple {
    static constexpr size_t n_fetches   = n_bands; // as often as the rows ahead are fetched while a block of each row is unpacked
    static constexpr size_t block       = n_block;
    static constexpr size_t own_block   = n_block;
    static constexpr int32_t offset     = 0;
    static constexpr bool   has_deltas  = false;
    static constexpr bool   is_signed   = false; // codes are signed where adds_four is false
    static constexpr bool   has_minima  = false;
    static constexpr bool   interleaved = false;
};

// Of a band, a block that ends with 16 bytes of codes: these, the 32 bits in the lower half of which is a scale and in the upper one perhaps
// a minimum, and fifth bits.
template <typename Block> struct Loaded {
    Groups codes;
    Wide   factors;
    Wide   fifth_bits;

    EDGEKV_INLINE Loaded(const char * const * rows, size_t i) {
        constexpr bool has_fifth = sizeof(Block) >= 22;
#if defined(__AVX512VNNI__)
        constexpr size_t n_missing = 32 - sizeof(Block);
        const auto       end = [&](size_t row) { return reinterpret_cast<const char *>(block_of<Block>(rows[row], i)) - n_missing; };
        const auto       all = eight_groups_of(end, ~0u << n_missing);
        std::memcpy(&codes, all.of + 4, sizeof(codes));
        fifth_bits = all.of[3];
        factors    = right(all.of[has_fifth ? 2 : 3], sizeof(Block) % 4 == 0 ? 0 : 16);
#else
        codes   = groups_of([&](size_t row) { return block_of<Block>(rows[row], i)->qs; });
        factors = groups_of([&](size_t row) { return block_of<Block>(rows[row], i); }).of[0];
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

  protected:
    static Wide value_of(Wide codes) {
        const __m128i values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
        return code_of(looked_up(each_quarter(values), codes));
    }
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

// ---- blocks of 256 whose parts have whole numbers for scales ----

struct Super {
    static constexpr size_t n_fetches  = 4 * n_bands;
    static constexpr size_t block      = n_block;
    static constexpr size_t own_block  = n_super;
    static constexpr int32_t offset    = 0;
    static constexpr bool   has_deltas = true;
    static constexpr bool   is_signed  = false;
    static constexpr bool   has_minima = true;
    static constexpr bool   interleaved = false;
    static constexpr bool   is_whole   = !adds_four; // scales, and so the sums over a block of 256

    static void put_scales(float * dst, Wide scales, WideFloats delta) {
        put(dst, is_whole ? pairs_of(scales) : floats_of(scales) * delta);
    }

    static WideFloats pairs_of(Wide scales) { return (WideFloats)((scales & all_words(0xFFFF)) | left(scales, 16)); }
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
                EightGroups groups;
                for (size_t w = 0; w < 4; ++w) {
                    eights.words([&](const char * block) { return block_of<Block>(block, i)->codes + 256 * pair + 64 * w; }, groups.of[2 * w],
                                 groups.of[2 * w + 1]);
                }
                return groups;
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
                return low | upper_bits<1>(fifth.of[group], static_cast<int>(part));
            });
        }
    }
};

struct Q6_K : Super {
    static constexpr ggml_type type       = GGML_TYPE_Q6_K;
    static constexpr size_t    n_at_once  = 2;
    static constexpr size_t    block      = 16;
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
            put(panel.scales + at, adds_four ? (WideFloats)scale : pairs_of(scale));
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
                put(codes, group, band, low_half(lower.of[g]) | upper_bits<2>(upper.of[g], from));
                put(codes, group + 16, band, high_half(lower.of[g]) | upper_bits<2>(upper.of[g], from + 4));
            }
        }
    }
};

} // namespace

} // namespace edgekv
