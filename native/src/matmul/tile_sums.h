// The rows of a panel times the columns of a tile. All of it is each source's own (kernels/vectors.h).
#pragma once

#include "matmul/column_tiles.h"
#include "matmul/few_rows.h"
#include "matmul/panel.h"

#include <cstring>

namespace edgekv {

namespace {

// As many columns at once as leave enough sums to hide the latency of their additions, and fit the registers.
#if defined(__AVX512VNNI__) || defined(EDGEKV_DOT4_EMULATED)
constexpr size_t n_wide = 16, n_columns_at_once = 6;
#else
constexpr size_t n_wide = 8, n_columns_at_once = 4;
#endif
constexpr size_t n_vectors = n_panel_rows / n_wide;

using Floats = float __attribute__((vector_size(4 * n_wide)));
using Ints   = int32_t __attribute__((vector_size(4 * n_wide)));

template <typename To> inline To read(const void * src) {
    To to;
    std::memcpy(&to, src, sizeof(to));
    return to;
}

inline Floats all_of(float x) { return Floats{} + x; }

// a * b + c, rounded once. Sums of more are written with it, so that no compiler chooses their order: columns of tiles of all sizes add up
// alike.
inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512VNNI__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(EDGEKV_DOT4_EMULATED)
    __m256 halves[3][2];
    std::memcpy(halves[0], &a, sizeof(a));
    std::memcpy(halves[1], &b, sizeof(b));
    std::memcpy(halves[2], &c, sizeof(c));
    for (size_t i = 0; i < 2; ++i) {
        halves[2][i] = _mm256_fmadd_ps(halves[0][i], halves[1][i], halves[2][i]);
    }
    return read<Floats>(halves[2]);
#else
    return _mm256_fmadd_ps(a, b, c);
#endif
}

// Four numbers of a column, in each lane.
inline Ints four_of(const int8_t * codes) { return Ints{} + read<int32_t>(codes); }

#if defined(EDGEKV_DOT4)

// sum + the products of four unsigned bytes of each lane with four signed ones.
inline Ints dot4(Ints sum, Ints codes, Ints four) {
#    if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)four);
#    elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)four);
#    else
    for (int byte = 0; byte < 4; ++byte) {
        sum += (codes >> (8 * byte) & 255) * (four << (24 - 8 * byte) >> 24);
    }
    return sum;
#    endif
}

#endif

// sum + the products of two numbers of 16 bits in each lane with two others.
inline Ints dot2(Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(EDGEKV_DOT4_EMULATED)
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#else
    return (Ints)dot2((__m256i)sum, (__m256i)a, (__m256i)b);
#endif
}

// ---- a tile: the rows of a panel times some columns ----

template <size_t n_columns> using Sums = Ints[n_columns][n_vectors];

// What a block's sums of products of codes begin with.
template <typename Weights> inline Ints start_of(const BlockFactor & factor) {
    return Weights::offset != 0 ? Ints{} + factor.start : Ints{};
}

#if defined(EDGEKV_DOT4)

// Products of a part's codes, added up.
template <typename Weights, size_t n_columns>
EDGEKV_INLINE void add_up(Sums<n_columns> & sums, const uint8_t * codes, const float *, const Tile<n_columns> & tile, size_t k) {
    for (size_t c = 0; c < n_columns; ++c) {
        for (size_t v = 0; v < n_vectors; ++v) {
            sums[c][v] = start_of<Weights>(tile.factors[c][k / Weights::block]);
        }
    }
#    pragma GCC unroll 8
    for (size_t group = 0; group < Weights::part / 4; ++group) {
        Ints weights[n_vectors];
#    pragma GCC unroll 2
        for (size_t v = 0; v < n_vectors; ++v) {
            weights[v] = read<Ints>(codes + group * n_group + v * sizeof(Ints));
        }
#    pragma GCC unroll 8
        for (size_t c = 0; c < n_columns; ++c) {
            const Ints four = four_of(tile.codes[c] + k + 4 * group);
#    pragma GCC unroll 2
            for (size_t v = 0; v < n_vectors; ++v) {
                sums[c][v] = dot4(sums[c][v], weights[v], four);
            }
        }
    }
}

#else

inline __m256i pairs(__m256i codes, __m256i four) { return _mm256_maddubs_epi16(codes, four); }

// Products of a part's codes, added up; where scales are whole numbers, times them, and onto the sums.
template <typename Weights, size_t n_columns>
EDGEKV_INLINE void add_up(Sums<n_columns> & sums, const uint8_t * codes, const float * scales, const Tile<n_columns> & tile, size_t k) {
    constexpr size_t n_groups = Weights::part / 4;
    __m256i          factor[n_vectors];
    for (size_t v = 0; v < n_vectors; ++v) {
        factor[v] = Weights::has_deltas ? read<__m256i>(scales + v * n_wide) : _mm256_set1_epi16(1);
    }
#    pragma GCC unroll 8
    for (size_t first = 0; first < n_groups; first += Weights::n_at_once) {
        __m256i parts[n_columns][n_vectors]; // sums of pairs of products
#    pragma GCC unroll 8
        for (size_t group = first; group < first + Weights::n_at_once; ++group) {
            __m256i weights[n_vectors], sizes[n_vectors];
#    pragma GCC unroll 2
            for (size_t v = 0; v < n_vectors; ++v) {
                weights[v] = read<__m256i>(codes + group * n_group + v * n_group / 2);
                sizes[v]   = Weights::is_signed ? _mm256_abs_epi8(weights[v]) : weights[v];
            }
#    pragma GCC unroll 4
            for (size_t c = 0; c < n_columns; ++c) {
                const auto four = (__m256i)four_of(tile.codes[c] + k + 4 * group);
#    pragma GCC unroll 2
                for (size_t v = 0; v < n_vectors; ++v) {
                    const __m256i part = pairs(sizes[v], Weights::is_signed ? _mm256_sign_epi8(four, weights[v]) : four);
                    parts[c][v]        = group == first ? part : _mm256_add_epi16(parts[c][v], part);
                    asm("" : "+x"(parts[c][v])); // in this order: a compiler that rearranges sums keeps all parts, in memory
                }
            }
        }
#    pragma GCC unroll 4
        for (size_t c = 0; c < n_columns; ++c) {
#    pragma GCC unroll 2
            for (size_t v = 0; v < n_vectors; ++v) {
                const Ints sum      = (Ints)_mm256_madd_epi16(parts[c][v], factor[v]);
                const bool is_first = first == 0 && !Weights::has_deltas;
                sums[c][v]          = sum + (is_first ? start_of<Weights>(tile.factors[c][k / Weights::block]) : sums[c][v]);
                asm("" : "+x"(sums[c][v]));
            }
        }
    }
}

#endif

template <size_t n_columns> struct Totals {
    Floats of[n_columns][n_vectors];

    auto &       operator[](size_t c) { return of[c]; }
    const auto & operator[](size_t c) const { return of[c]; }
};

// Add what minima contribute over n parts of a unit; `first` is the first one's block in the columns.
template <size_t n_columns>
EDGEKV_INLINE void add_minima(Totals<n_columns> & totals, const Panel & panel, size_t first, size_t n, const Tile<n_columns> & tile) {
    for (size_t part = 0; part < n; ++part) {
        const float * minima = panel.minima + part * n_panel_rows;
#pragma GCC unroll 8
        for (size_t c = 0; c < n_columns; ++c) {
#pragma GCC unroll 2
            for (size_t v = 0; v < n_vectors; ++v) {
                totals[c][v] = fused(read<Floats>(minima + v * n_wide), all_of(tile.factors[c][first + part].sum), totals[c][v]);
            }
        }
    }
}

// Take away what whole minima of a unit contribute, each for 16 numbers.
template <typename Weights, size_t n_columns>
EDGEKV_INLINE void take_fours(Totals<n_columns> & totals, const Panel & panel, size_t first, const Tile<n_columns> & tile) {
    Sums<n_columns> sums = {};
    for (size_t pair = 0; pair < Weights::own_block / Weights::block; ++pair) {
#pragma GCC unroll 8
        for (size_t c = 0; c < n_columns; ++c) {
#pragma GCC unroll 2
            for (size_t v = 0; v < n_vectors; ++v) {
                const auto minima = read<Ints>(panel.minima + pair * n_panel_rows + v * n_wide);
                sums[c][v]        = dot2(sums[c][v], minima, Ints{} + tile.factors[c][first + pair].start);
            }
        }
    }
#pragma GCC unroll 8
    for (size_t c = 0; c < n_columns; ++c) {
#pragma GCC unroll 2
        for (size_t v = 0; v < n_vectors; ++v) {
            const Floats minima = __builtin_convertvector(sums[c][v], Floats) * -tile.factors[c][first].scale;
            totals[c][v]        = fused(minima, read<Floats>(panel.deltas + v * n_wide), totals[c][v]);
        }
    }
}

// Add a block of 32, or one of 256 with one scale: a unit of a panel, which is the `unit`-th of the columns.
template <typename Weights, size_t n_columns>
EDGEKV_INLINE void add_simple(Totals<n_columns> & totals, const Panel & panel, size_t unit, const Tile<n_columns> & tile) {
    constexpr size_t n_factors = Weights::own_block / Weights::block;
    Sums<n_columns>  sums;
    add_up<Weights, n_columns>(sums, panel.codes, panel.scales, tile, unit * Weights::own_block);
#pragma GCC unroll 8
    for (size_t c = 0; c < n_columns; ++c) {
        const float scale = tile.factors[c][unit * n_factors].scale;
#pragma GCC unroll 2
        for (size_t v = 0; v < n_vectors; ++v) {
            const Floats products = __builtin_convertvector(sums[c][v], Floats) * scale;
            totals[c][v]          = fused(products, read<Floats>(panel.scales + v * n_wide), totals[c][v]);
        }
    }
    if constexpr (Weights::has_minima) {
        add_minima<n_columns>(totals, panel, unit * n_factors, n_factors, tile);
    }
    if constexpr (Weights::has_fours) {
        take_fours<Weights, n_columns>(totals, panel, unit * n_factors, tile);
    }
}

// Add a block of 256, the activations of which have one scale.
template <typename Weights, size_t n_columns>
EDGEKV_INLINE void add_super(Totals<n_columns> & totals, const Panel & panel, size_t unit, const Tile<n_columns> & tile) {
    constexpr size_t  n_parts = Weights::own_block / Weights::block;
    const size_t      first   = unit * n_parts; // of the columns' blocks
    Totals<n_columns> scaled  = {};
    Sums<n_columns>   whole   = {}, parts;
    auto &            sums    = adds_four ? parts : whole; // pairs are multiplied by their scale before they are added up
    for (size_t part = 0; part < n_parts; ++part) {
        const float * scales = panel.scales + part * n_panel_rows;
        add_up<Weights, n_columns>(sums, panel.codes + part * (Weights::block / 4) * n_group, scales, tile, (first + part) * Weights::block);
        if constexpr (adds_four) {
#pragma GCC unroll 8
            for (size_t c = 0; c < n_columns; ++c) {
#pragma GCC unroll 2
                for (size_t v = 0; v < n_vectors; ++v) {
                    if constexpr (Weights::is_whole) {
                        whole[c][v] += sums[c][v] * read<Ints>(scales + v * n_wide);
                    } else {
                        scaled[c][v] = fused(__builtin_convertvector(sums[c][v], Floats), read<Floats>(scales + v * n_wide), scaled[c][v]);
                    }
                }
            }
        }
    }
    if constexpr (Weights::has_minima) {
        add_minima<n_columns>(totals, panel, first, n_parts, tile);
    }
#pragma GCC unroll 8
    for (size_t c = 0; c < n_columns; ++c) {
        const float scale = tile.factors[c][first].scale;
#pragma GCC unroll 2
        for (size_t v = 0; v < n_vectors; ++v) {
            if constexpr (!Weights::is_whole) {
                totals[c][v] = fused(scaled[c][v], all_of(scale), totals[c][v]);
            } else {
                totals[c][v] = fused(__builtin_convertvector(whole[c][v], Floats) * scale, read<Floats>(panel.deltas + v * n_wide), totals[c][v]);
            }
        }
    }
}

template <typename Weights, size_t n_columns>
EDGEKV_INLINE void add_unit(Totals<n_columns> & totals, const Panel & panel, size_t unit, const Tile<n_columns> & tile) {
    if constexpr (Weights::has_deltas) {
        add_super<Weights, n_columns>(totals, panel, unit, tile);
    } else {
        add_simple<Weights, n_columns>(totals, panel, unit, tile);
    }
}

// Sums of rows, which a tile of columns has so far. Registers are copied one by one: totals whose address is taken are kept in memory.
template <size_t n_columns> EDGEKV_INLINE void read_totals(Totals<n_columns> & totals, const Tile<n_columns> & tile, size_t n_rows) {
#pragma GCC unroll 8
    for (size_t c = 0; c < n_columns; ++c) {
        float         row_sums[n_panel_rows];
        const float * from = tile.out[c];
        if (n_rows < n_panel_rows) {
            std::memcpy(row_sums, from, n_rows * sizeof(float));
            from = row_sums;
        }
#pragma GCC unroll 2
        for (size_t v = 0; v < n_vectors; ++v) {
            totals[c][v] = read<Floats>(from + v * n_wide);
        }
    }
}

template <size_t n_columns> EDGEKV_INLINE void write_totals(const Totals<n_columns> & totals, const Tile<n_columns> & tile, size_t n_rows) {
#pragma GCC unroll 8
    for (size_t c = 0; c < n_columns; ++c) {
        float   row_sums[n_panel_rows];
        float * to = n_rows < n_panel_rows ? row_sums : tile.out[c];
#pragma GCC unroll 2
        for (size_t v = 0; v < n_vectors; ++v) {
            const Floats sum = totals[c][v];
            std::memcpy(to + v * n_wide, &sum, sizeof(sum));
        }
        if (n_rows < n_panel_rows) {
            std::memcpy(tile.out[c], row_sums, n_rows * sizeof(float));
        }
    }
}

} // namespace

} // namespace edgekv
