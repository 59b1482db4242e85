// Weights of each type, unpacked: some rows of them, in the order in which four numbers of a row are multiplied at once. All of it is
// each source's own (kernels/vectors.h).
#pragma once

#include "matmul/mul_mat.h"
#include "matmul/products.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstring>
#include <immintrin.h>

namespace edgekv {

namespace {

// A weight is scale * (code - offset) + minimum, or delta times that where scales are whole numbers.
struct Panel {
    uint8_t * codes;  // (depth / 4, n_panel_rows, 4)
    float *   scales; // (depth / block, n_panel_rows); pairs of equal int16_t where they are whole numbers
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
constexpr size_t panel_depth = n_panel_weights / n_panel_rows, n_eights = n_panel_rows / 8;
static_assert(EDGEKV_ROWS_TOGETHER % n_panel_rows == 0, "panels are whole");

constexpr size_t n_block = 32, n_super = 256, n_group = 4 * n_panel_rows; // a group: 4 numbers of each row

inline __m128i load16(const void * src) { return _mm_loadu_si128(static_cast<const __m128i *>(src)); }

inline __m256i both(const void * low, const void * high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1); }

// 16 bytes of each of 8 rows as four vectors: the first four bytes of all rows, the next four and so on.
struct Groups {
    __m256i of[4];
};

template <typename At> inline Groups groups_of(const At & at) {
    const __m256i a = both(at(0), at(4)), b = both(at(1), at(5)), c = both(at(2), at(6)), d = both(at(3), at(7));
    const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    const __m256i ab2 = _mm256_unpackhi_epi32(a, b), cd2 = _mm256_unpackhi_epi32(c, d);
    return { { _mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd), _mm256_unpacklo_epi64(ab2, cd2),
               _mm256_unpackhi_epi64(ab2, cd2) } };
}

// The same where ggml has interleaved 8 rows, 8 bytes of each at a time.
inline Groups interleaved_groups(const uint8_t * bytes) {
    Groups groups;
    for (size_t i = 0; i < 2; ++i) {
        const __m256 first  = _mm256_loadu_ps(reinterpret_cast<const float *>(bytes + 64 * i)); // of four rows, and of four more
        const __m256 second = _mm256_loadu_ps(reinterpret_cast<const float *>(bytes + 64 * i + 32));
        groups.of[2 * i]     = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88)), 0xD8);
        groups.of[2 * i + 1] = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xDD)), 0xD8);
    }
    return groups;
}

inline __m256i low_half(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
inline __m256i high_half(__m256i bytes) { return low_half(_mm256_srli_epi16(bytes, 4)); }

// Bits `from` and up of every byte, n_bits of them, moved to bit 4.
template <int n_bits> inline __m256i upper_bits(__m256i bytes, int from) {
    const __m256i shifted = _mm256_slli_epi16(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(from)), 4);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(((1 << n_bits) - 1) << 4));
}

inline void put(uint8_t * codes, size_t group, size_t eight, __m256i value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes + group * n_group + eight * 32), value);
}

inline void put(float * dst, __m256 values) { _mm256_storeu_ps(dst, values); }

// The first four bytes of something of each of 8 rows.
template <typename At> inline __m256i heads_of(const At & at) {
    const auto head = [&](size_t row) {
        int bytes;
        std::memcpy(&bytes, at(row), sizeof(bytes));
        return bytes;
    };
    return _mm256_setr_epi32(head(0), head(1), head(2), head(3), head(4), head(5), head(6), head(7));
}

// The lower and the upper halves of 8 numbers of four bytes, each a float of two.
inline __m256 halves_of(__m256i low_ones) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low_ones, low_ones), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}
inline __m256 low_halves(__m256i heads) { return halves_of(_mm256_and_si256(heads, _mm256_set1_epi32(0xFFFF))); }
inline __m256 high_halves(__m256i heads) { return halves_of(_mm256_srli_epi32(heads, 16)); }

template <typename Block> inline const Block * block_of(const char * row, size_t i) { return reinterpret_cast<const Block *>(row) + i; }

// ---- blocks of 32 with one scale ----

// What all types have in common where activations have a scale for each block of 32.
struct Simple {
    static constexpr size_t block       = n_block;
    static constexpr size_t own_block   = n_block;
    static constexpr int32_t offset     = 0;
    static constexpr bool   has_deltas  = false;
    static constexpr bool   is_signed   = false; // codes are signed where adds_four is false
    static constexpr bool   has_minima  = false;
    static constexpr bool   interleaved = false;
};

// Scales of blocks that begin with them, and minima that follow them.
template <typename Block, bool has_minima = false> inline void put_scales(const char * const * rows, size_t i, const Panel & panel) {
    for (size_t eight = 0; eight < n_eights; ++eight) {
        const size_t  at    = i * n_panel_rows + 8 * eight;
        const __m256i heads = heads_of([&](size_t row) { return block_of<Block>(rows[8 * eight + row], i); });
        put(panel.scales + at, low_halves(heads));
        if (has_minima) {
            put(panel.minima + at, high_halves(heads));
        }
    }
}

// Those of an interleaved block.
inline void put_scales(const ggml_half * scales, size_t i, size_t eight, const Panel & panel) {
    put(panel.scales + i * n_panel_rows + 8 * eight, _mm256_cvtph_ps(load16(scales)));
}

// Codes of half a byte, the first half of a block in the lower ones; `change` makes of four the codes of group `group`.
template <typename Change>
inline void unpack_halves(const Groups & groups, size_t i, size_t eight, uint8_t * codes, const Change & change) {
    for (size_t g = 0; g < 4; ++g) {
        put(codes, 8 * i + g, eight, change(eight, g, low_half(groups.of[g])));
        put(codes, 8 * i + 4 + g, eight, change(eight, 4 + g, high_half(groups.of[g])));
    }
}

template <typename Block, typename Change>
inline void unpack_halves(const char * const * rows, size_t i, uint8_t * codes, const Change & change) {
    for (size_t eight = 0; eight < n_eights; ++eight) {
        unpack_halves(groups_of([&](size_t row) { return block_of<Block>(rows[8 * eight + row], i)->qs; }), i, eight, codes, change);
    }
}
inline __m256i unchanged(size_t, size_t, __m256i codes) { return codes; }

struct Q4_0 : Simple {
    static constexpr ggml_type type      = GGML_TYPE_Q4_0;
    static constexpr int32_t   offset    = 8;
    static constexpr size_t    n_at_once = 8; // groups whose products are added up in 16 bits

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            put_scales<block_q4_0>(rows, i, panel);
            unpack_halves<block_q4_0>(rows, i, panel.codes, unchanged);
        }
    }
};

// The blocks of 8 rows side by side.
template <typename Block> struct Eight {
    ggml_half scales[8];
    uint8_t   codes[8 * sizeof(Block::qs)];
};

struct Q4_0x8 : Q4_0 {
    static constexpr bool interleaved = true;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            for (size_t eight = 0; eight < n_eights; ++eight) {
                const auto & block = *block_of<Eight<block_q4_0>>(rows[8 * eight], i);
                put_scales(block.scales, i, eight, panel);
                Groups groups = interleaved_groups(block.codes);
                for (__m256i & group : groups.of) {
                    group = _mm256_xor_si256(group, _mm256_set1_epi8(static_cast<char>(0x88))); // ggml's codes are signed here
                }
                unpack_halves(groups, i, eight, panel.codes, unchanged);
            }
        }
    }
};

struct Q4_1 : Simple {
    static constexpr ggml_type type       = GGML_TYPE_Q4_1;
    static constexpr bool      has_minima = true;
    static constexpr size_t    n_at_once  = 8;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            put_scales<block_q4_1, has_minima>(rows, i, panel);
            unpack_halves<block_q4_1>(rows, i, panel.codes, unchanged);
        }
    }
};

// Fifth bits of 8 rows, 32 bits of each.
struct FifthBits {
    __m256i bits;

    // Those of four numbers, at bit 4.
    __m256i of(size_t group) const {
        const __m256i byte  = _mm256_add_epi8(_mm256_set1_epi8(static_cast<char>(group / 2)),
                                              _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)));
        const __m256i which = _mm256_set1_epi32(group % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
        const __m256i found = _mm256_and_si256(_mm256_shuffle_epi8(bits, byte), which);
        return _mm256_and_si256(_mm256_cmpeq_epi8(found, which), _mm256_set1_epi8(16));
    }
};

template <typename Block> inline void unpack_fives(const char * const * rows, size_t i, uint8_t * codes) {
    FifthBits fifth[n_eights];
    for (size_t eight = 0; eight < n_eights; ++eight) {
        alignas(32) uint32_t bits[8];
        for (size_t row = 0; row < 8; ++row) {
            std::memcpy(bits + row, block_of<Block>(rows[8 * eight + row], i)->qh, sizeof(uint32_t));
        }
        fifth[eight].bits = _mm256_load_si256(reinterpret_cast<const __m256i *>(bits));
    }
    unpack_halves<Block>(rows, i, codes, [&](size_t eight, size_t group, __m256i low) { return _mm256_or_si256(low, fifth[eight].of(group)); });
}

struct Q5_0 : Simple {
    static constexpr ggml_type type      = GGML_TYPE_Q5_0;
    static constexpr int32_t   offset    = 16;
    static constexpr size_t    n_at_once = 4;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            put_scales<block_q5_0>(rows, i, panel);
            unpack_fives<block_q5_0>(rows, i, panel.codes);
        }
    }
};

struct Q5_1 : Simple {
    static constexpr ggml_type type       = GGML_TYPE_Q5_1;
    static constexpr bool      has_minima = true;
    static constexpr size_t    n_at_once  = 4;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            put_scales<block_q5_1, has_minima>(rows, i, panel);
            unpack_fives<block_q5_1>(rows, i, panel.codes);
        }
    }
};

// Codes from -128 on: as they are where a sign may be moved to the activations, or 128 more.
struct Signed : Simple {
    static constexpr size_t  n_at_once = 1;
    static constexpr bool    is_signed = !adds_four;
    static constexpr int32_t offset    = adds_four ? 128 : 0;

    static __m256i code_of(__m256i value) { return adds_four ? _mm256_xor_si256(value, _mm256_set1_epi8(-128)) : value; }
};

struct Q8_0 : Signed {
    static constexpr ggml_type type = GGML_TYPE_Q8_0;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            put_scales<block_q8_0>(rows, i, panel);
            for (size_t eight = 0; eight < n_eights; ++eight) {
                for (size_t part = 0; part < 2; ++part) {
                    const Groups groups = groups_of([&](size_t row) { return block_of<block_q8_0>(rows[8 * eight + row], i)->qs + 16 * part; });
                    for (size_t g = 0; g < 4; ++g) {
                        put(panel.codes, 8 * i + 4 * part + g, eight, code_of(groups.of[g]));
                    }
                }
            }
        }
    }
};

struct IQ4_NL : Signed {
    static constexpr ggml_type type = GGML_TYPE_IQ4_NL;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            put_scales<block_iq4_nl>(rows, i, panel);
            unpack_halves<block_iq4_nl>(rows, i, panel.codes, value_of);
        }
    }

  protected:
    static __m256i value_of(size_t, size_t, __m256i codes) {
        const __m128i values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
        return code_of(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes));
    }
};

struct IQ4_NLx8 : IQ4_NL {
    static constexpr bool interleaved = true;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            for (size_t eight = 0; eight < n_eights; ++eight) {
                const auto & block = *block_of<Eight<block_iq4_nl>>(rows[8 * eight], i);
                put_scales(block.scales, i, eight, panel);
                unpack_halves(interleaved_groups(block.codes), i, eight, panel.codes, value_of);
            }
        }
    }
};

// ---- blocks of 256 whose parts have whole numbers for scales ----

struct Super {
    static constexpr size_t block      = n_block;
    static constexpr size_t own_block  = n_super;
    static constexpr int32_t offset    = 0;
    static constexpr bool   has_deltas = true;
    static constexpr bool   is_signed  = false;
    static constexpr bool   has_minima = true;
    static constexpr bool   interleaved = false;

    static void put_scales(float * dst, __m256i scales, __m256 delta) {
        if (adds_four) {
            put(dst, _mm256_mul_ps(_mm256_cvtepi32_ps(scales), delta));
        } else {
            const __m256i pairs = _mm256_or_si256(_mm256_and_si256(scales, _mm256_set1_epi32(0xFFFF)), _mm256_slli_epi32(scales, 16));
            put(dst, _mm256_castsi256_ps(pairs));
        }
    }
};

// Eight scales and half minima of six bits each, behind what both are multiplied by.
template <typename Block> inline void put_sixes(const char * const * rows, size_t i, const Panel & panel) {
    const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15), two = _mm256_set1_epi8(48), byte = _mm256_set1_epi32(255);
    for (size_t eight = 0; eight < n_eights; ++eight) {
        const Groups  head  = groups_of([&](size_t row) { return block_of<Block>(rows[8 * eight + row], i); });
        const __m256  delta = low_halves(head.of[0]), least = _mm256_sub_ps(_mm256_setzero_ps(), high_halves(head.of[0]));
        const __m256i upper = head.of[3];
        const __m256i scales[] = { _mm256_and_si256(head.of[1], six),
                                   _mm256_or_si256(_mm256_and_si256(upper, four),
                                                   _mm256_and_si256(_mm256_srli_epi32(head.of[1], 2), two)) };
        const __m256i minima[] = { _mm256_and_si256(head.of[2], six),
                                   _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(upper, 4), four),
                                                   _mm256_and_si256(_mm256_srli_epi32(head.of[2], 2), two)) };
        put(panel.deltas + i * n_panel_rows + 8 * eight, delta);
        for (int part = 0; part < 8; ++part) {
            const size_t  at    = (8 * i + part) * n_panel_rows + 8 * eight;
            const __m128i shift = _mm_cvtsi32_si128(8 * (part % 4));
            Super::put_scales(panel.scales + at, _mm256_and_si256(_mm256_srl_epi32(scales[part / 4], shift), byte), delta);
            put(panel.minima + at, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(minima[part / 4], shift), byte)), least));
        }
    }
}

// `change` makes the codes of a part of 32 of the half bytes of its group; `at` finds those from byte `offset` of each row on.
template <typename At, typename Change> inline void unpack_parts(const At & at, size_t i, size_t eight, uint8_t * codes, const Change & change) {
    for (size_t pair = 0; pair < 4; ++pair) { // of parts of 32
        for (size_t piece = 0; piece < 2; ++piece) {
            const Groups groups = at(32 * pair + 16 * piece);
            for (size_t g = 0; g < 4; ++g) {
                const size_t group = 64 * i + 16 * pair + 4 * piece + g;
                put(codes, group, eight, change(2 * pair, 4 * piece + g, low_half(groups.of[g])));
                put(codes, group + 8, eight, change(2 * pair + 1, 4 * piece + g, high_half(groups.of[g])));
            }
        }
    }
}

template <typename Block, typename Change>
inline void unpack_parts(const char * const * rows, size_t i, size_t eight, uint8_t * codes, const Change & change) {
    const auto at = [&](size_t offset) {
        return groups_of([&](size_t row) { return block_of<Block>(rows[8 * eight + row], i)->qs + offset; });
    };
    unpack_parts(at, i, eight, codes, change);
}

struct Q4_K : Super {
    static constexpr ggml_type type      = GGML_TYPE_Q4_K;
    static constexpr size_t    n_at_once = 8;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            put_sixes<block_q4_K>(rows, i, panel);
            for (size_t eight = 0; eight < n_eights; ++eight) {
                unpack_parts<block_q4_K>(rows, i, eight, panel.codes, unchanged);
            }
        }
    }
};

// Eight scales, and eight minima, of six bits each in 12 bytes.
inline __m128i sixes_of(const uint8_t * bytes) {
    uint32_t words[3];
    std::memcpy(words, bytes, sizeof(words));
    return _mm_setr_epi32(static_cast<int>(words[0] & 0x3f3f3f3f), static_cast<int>((words[2] & 0x0f0f0f0f) | (words[0] >> 2 & 0x30303030)),
                          static_cast<int>(words[1] & 0x3f3f3f3f), static_cast<int>((words[2] >> 4 & 0x0f0f0f0f) | (words[1] >> 2 & 0x30303030)));
}

struct Q4_Kx8 : Q4_K {
    static constexpr bool interleaved = true;

    struct Block {
        ggml_half deltas[8], least[8];
        uint8_t   sixes[8][12]; // of each part: scales and minima of 8 rows
        uint8_t   codes[8 * QK_K / 2];
    };

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            for (size_t eight = 0; eight < n_eights; ++eight) {
                const Block & block = *block_of<Block>(rows[8 * eight], i);
                const __m256  delta = _mm256_cvtph_ps(load16(block.deltas));
                const __m256  least = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_cvtph_ps(load16(block.least)));
                put(panel.deltas + i * n_panel_rows + 8 * eight, delta);
                for (size_t part = 0; part < 8; ++part) {
                    const size_t  at    = (8 * i + part) * n_panel_rows + 8 * eight;
                    const __m128i bytes = sixes_of(block.sixes[part]);
                    put_scales(panel.scales + at, _mm256_cvtepu8_epi32(bytes), delta);
                    put(panel.minima + at, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))), least));
                }
                unpack_parts([&](size_t offset) { return interleaved_groups(block.codes + 8 * offset); }, i, eight, panel.codes, unchanged);
            }
        }
    }
};

struct Q5_K : Super {
    static constexpr ggml_type type      = GGML_TYPE_Q5_K;
    static constexpr size_t    n_at_once = 4;

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            put_sixes<block_q5_K>(rows, i, panel);
            for (size_t eight = 0; eight < n_eights; ++eight) {
                Groups fifth[2]; // bit `part` of each byte
                for (size_t piece = 0; piece < 2; ++piece) {
                    fifth[piece] = groups_of([&](size_t row) { return block_of<block_q5_K>(rows[8 * eight + row], i)->qh + 16 * piece; });
                }
                unpack_parts<block_q5_K>(rows, i, eight, panel.codes, [&](size_t part, size_t group, __m256i low) {
                    return _mm256_or_si256(low, upper_bits<1>(fifth[group / 4].of[group % 4], static_cast<int>(part)));
                });
            }
        }
    }
};

struct Q6_K : Super {
    static constexpr ggml_type type       = GGML_TYPE_Q6_K;
    static constexpr size_t    n_at_once  = 2;
    static constexpr size_t    block      = 16;
    static constexpr int32_t   offset     = adds_four ? 32 : 0;
    static constexpr bool      has_minima = !adds_four; // an offset of whole scales would have to be multiplied by them

    static void unpack(const char * const * rows, size_t n_blocks, const Panel & panel) {
        for (size_t i = 0; i < n_blocks; ++i) {
            for (size_t eight = 0; eight < n_eights; ++eight) {
                put_signed(rows, i, eight, panel);
                for (size_t quarter = 0; quarter < 4; ++quarter) { // 16 of the low halves of bytes beside 16 more, in each 128 weights
                    unpack_quarter(rows, i, eight, quarter, panel.codes);
                }
            }
        }
    }

  private:
    // Sixteen scales of a signed byte, before what they are multiplied by.
    static void put_signed(const char * const * rows, size_t i, size_t eight, const Panel & panel) {
        const auto   block  = [&](size_t row) { return block_of<block_q6_K>(rows[8 * eight + row], i); };
        const Groups scales = groups_of([&](size_t row) { return block(row)->scales; });
        const __m256 delta  = high_halves(heads_of([&](size_t row) { return block(row)->scales + 14; }));
        const __m256 least  = _mm256_mul_ps(delta, _mm256_set1_ps(-32.0f));
        put(panel.deltas + i * n_panel_rows + 8 * eight, delta);
        for (int part = 0; part < 16; ++part) {
            const size_t  at    = (16 * i + part) * n_panel_rows + 8 * eight;
            const __m256i upper = _mm256_sll_epi32(scales.of[part / 4], _mm_cvtsi32_si128(24 - 8 * (part % 4)));
            const __m256i scale = _mm256_srai_epi32(upper, 24);
            put_scales(panel.scales + at, scale, delta);
            if (has_minima) {
                put(panel.minima + at, _mm256_mul_ps(_mm256_cvtepi32_ps(scale), least));
            }
        }
    }

    static void unpack_quarter(const char * const * rows, size_t i, size_t eight, size_t quarter, uint8_t * codes) {
        const size_t of_128 = quarter / 2, piece = quarter % 2;
        const auto   block  = [&](size_t row) { return block_of<block_q6_K>(rows[8 * eight + row], i); };
        const Groups first  = groups_of([&](size_t row) { return block(row)->ql + 64 * of_128 + 16 * piece; });
        const Groups second = groups_of([&](size_t row) { return block(row)->ql + 64 * of_128 + 32 + 16 * piece; });
        const Groups upper  = groups_of([&](size_t row) { return block(row)->qh + 32 * of_128 + 16 * piece; });
        for (size_t g = 0; g < 4; ++g) {
            const size_t group = 64 * i + 32 * of_128 + 4 * piece + g;
            put(codes, group, eight, _mm256_or_si256(low_half(first.of[g]), upper_bits<2>(upper.of[g], 0)));
            put(codes, group + 8, eight, _mm256_or_si256(low_half(second.of[g]), upper_bits<2>(upper.of[g], 2)));
            put(codes, group + 16, eight, _mm256_or_si256(high_half(first.of[g]), upper_bits<2>(upper.of[g], 4)));
            put(codes, group + 24, eight, _mm256_or_si256(high_half(second.of[g]), upper_bits<2>(upper.of[g], 6)));
        }
    }
};

} // namespace

} // namespace edgekv
