// Compiled once for each set of instructions, with its options; EDGEKV_INSTRUCTIONS is its name. EDGEKV_DOT4 is defined where a
// register adds up products of four bytes (`vpdpbusd`).
#include "matmul/column_tiles.h"
#include "matmul/panel.h"
#include "matmul/rows_q6_k.h"
#include "kernels/vectors.h"

#include <algorithm>
#include <type_traits>

namespace edgekv {

namespace {

#define EDGEKV_TEXT_(a) #a
#define EDGEKV_TEXT(a)  EDGEKV_TEXT_(a)

// ---- registers ----

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

// ---- a tile: the rows of a panel times some columns ----

template <size_t n_columns> using Sums = Ints[n_columns][n_vectors];

// What a block's sums of products of codes begin with.
template <typename Weights> inline Ints start_of(const BlockFactor & factor) {
    return Weights::offset != 0 ? Ints{} + factor.start : Ints{};
}

#if defined(EDGEKV_DOT4)

// Products of a block's codes, added up.
template <typename Weights, size_t n_columns>
EDGEKV_INLINE void add_up(Sums<n_columns> & sums, const uint8_t * codes, const float *, const Tile<n_columns> & tile, size_t k) {
    for (size_t c = 0; c < n_columns; ++c) {
        for (size_t v = 0; v < n_vectors; ++v) {
            sums[c][v] = start_of<Weights>(tile.factors[c][k / Weights::block]);
        }
    }
#    pragma GCC unroll 8
    for (size_t group = 0; group < Weights::block / 4; ++group) {
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

// Products of a block's codes, added up; where scales are whole numbers, times them, and onto the sums.
template <typename Weights, size_t n_columns>
EDGEKV_INLINE void add_up(Sums<n_columns> & sums, const uint8_t * codes, const float * scales, const Tile<n_columns> & tile, size_t k) {
    constexpr size_t n_groups = Weights::block / 4;
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

// Add a block of 32: a unit of a panel, which is the `unit`-th of the columns.
template <typename Weights, size_t n_columns>
EDGEKV_INLINE void add_simple(Totals<n_columns> & totals, const Panel & panel, size_t unit, const Tile<n_columns> & tile) {
    Sums<n_columns> sums;
    add_up<Weights, n_columns>(sums, panel.codes, panel.scales, tile, unit * Weights::block);
#pragma GCC unroll 8
    for (size_t c = 0; c < n_columns; ++c) {
        const BlockFactor & factor = tile.factors[c][unit];
#pragma GCC unroll 2
        for (size_t v = 0; v < n_vectors; ++v) {
            const Floats products = __builtin_convertvector(sums[c][v], Floats) * factor.scale;
            totals[c][v]          = fused(products, read<Floats>(panel.scales + v * n_wide), totals[c][v]);
            if (Weights::has_minima) {
                totals[c][v] = fused(read<Floats>(panel.minima + v * n_wide), all_of(factor.sum), totals[c][v]);
            }
        }
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

// Some rows of a product, as a panel holds them.
template <typename Weights> struct PanelRows {
    const char * rows[n_panel_rows]; // the last one, or the last eight, for those that there are not
    size_t       n;

    PanelRows(const Product & product, size_t first, size_t end) : n(std::min(n_panel_rows, end - first)) {
        for (size_t i = 0; i < n_panel_rows; ++i) {
            rows[i] = product.weights + (first + (Weights::interleaved ? std::min(i / 8 * 8, n - 8) : std::min(i, n - 1))) * product.row_bytes;
        }
    }
};

// Part `unit` of a panel.
template <typename Weights> inline Panel unit_of(const Panel & panel, size_t unit) {
    const size_t part = unit * (Weights::own_block / Weights::block) * n_panel_rows;
    return { panel.codes + unit * (Weights::own_block / 4) * n_group, panel.scales + part, panel.minima + part, panel.deltas + unit * n_panel_rows };
}

// Functions of their own, so that sums stay in registers: one that held the loops of all tiles would keep them in memory.
#define EDGEKV_APART __attribute__((noinline))

// A slice of a panel's rows times the columns of a tile: into their sums, or onto those of the slices before.
template <typename Weights, size_t n_columns>
EDGEKV_APART void multiply_tile(const Panel & panel, size_t n_units, const Tile<n_columns> & tile, bool is_first, size_t n_rows, Ahead & ahead) {
    Totals<n_columns> totals = {};
    if (!is_first) {
        read_totals(totals, tile, n_rows);
    }
    for (size_t unit = 0; unit < n_units; ++unit) {
        ahead.fetch();
        add_unit<Weights, n_columns>(totals, unit_of<Weights>(panel, unit), unit, tile);
    }
    write_totals(totals, tile, n_rows);
}

// Whole rows, unit by unit.
template <typename Weights, size_t n_columns>
EDGEKV_APART void multiply_unpacking(const PanelRows<Weights> & rows, const Panel & panel, size_t n_units, const Tile<n_columns> & tile, Ahead & ahead) {
    Totals<n_columns> totals = {};
    for (size_t unit = 0; unit < n_units; ++unit) {
        Weights::unpack(rows.rows, unit, panel, ahead);
        add_unit<Weights, n_columns>(totals, panel, unit, tile);
    }
    write_totals(totals, tile, rows.n);
}

// Few columns: each unit of weights meets them as soon as it is unpacked, so that weights are read at one pace.
template <typename Weights> void multiply_units(const Product & product, size_t first_row, size_t end_row, const Panel & panel) {
    const size_t n_units = product.columns.depth / Weights::own_block;
    for (size_t row = first_row; row < end_row; row += n_panel_rows) {
        const PanelRows<Weights> rows(product, row, end_row);
        Ahead                    ahead(product.weights + (row + n_panel_rows) * product.row_bytes, 0, n_panel_rows * product.row_bytes, 1,
                                       n_units * Weights::n_fetches);
        each_tile<n_columns_at_once>(product, Weights::block, row, 0, [&](const auto & tile) {
            multiply_unpacking<Weights>(rows, panel, n_units, tile, ahead);
        });
    }
}

// Rows of Q6_K, with so many columns that panels are not faster.
template <typename Weights> constexpr bool has_rows = adds_four && std::is_same_v<Weights, Q6_K>;
constexpr size_t n_columns_of_rows = 3;

void multiply_rows(const Product & product, size_t first_row, size_t end_row) {
    each_tile<n_columns_of_rows>(product, Q6_K::block, first_row, 0, [&](const auto & tile) {
        for (size_t row = first_row; row < end_row; ++row) {
            multiply_row(product.weights + row * product.row_bytes, product.row_bytes, product.columns.depth / n_super, tile, row - first_row);
        }
    });
}

// More columns: a panel is unpacked once for all tiles. Each goes on from the sums that the slice of the row before has left.
template <typename Weights> void multiply_panels(const Product & product, size_t first_row, size_t end_row, const Panel & panel) {
    const size_t depth    = product.columns.depth;
    const size_t n_slices = (depth + panel_depth - 1) / panel_depth;
    const size_t slice    = ((depth + n_slices - 1) / n_slices + n_super - 1) / n_super * n_super;
    const size_t bytes    = product.row_bytes / (depth / Weights::own_block); // of a block
    constexpr size_t together = Weights::interleaved ? 8 : 1; // rows

    for (size_t row = first_row; row < end_row; row += n_panel_rows) {
        const PanelRows<Weights> rows(product, row, end_row);
        Ahead                    none;
        for (size_t k = 0; k < depth; k += slice) {
            const size_t first = k / Weights::own_block, n_units = std::min(slice, depth - k) / Weights::own_block;
            for (size_t unit = 0; unit < n_units; ++unit) {
                Weights::unpack(rows.rows, first + unit, unit_of<Weights>(panel, unit), none);
            }
            Ahead ahead(rows.rows[0] + first * bytes * together + n_panel_rows * product.row_bytes, product.row_bytes * together, n_units * bytes * together,
                        row + 2 * n_panel_rows <= end_row ? n_panel_rows / together : 0, n_units);
            each_tile<n_columns_at_once>(product, Weights::block, row, k, [&](const auto & tile) {
                multiply_tile<Weights>(panel, n_units, tile, k == 0, rows.n, ahead);
            });
        }
    }
}

template <typename Weights> void multiply(const Product & product, size_t first_row, size_t end_row, void * workspace) {
    auto *      memory = static_cast<uint8_t *>(workspace);
    const Panel panel  = { memory, reinterpret_cast<float *>(memory + n_panel_rows * panel_depth),
                           reinterpret_cast<float *>(memory + n_panel_rows * panel_depth) + n_panel_rows * panel_depth / 16,
                           reinterpret_cast<float *>(memory + n_panel_rows * panel_depth) + n_panel_rows * panel_depth / 8 };
    if (has_rows<Weights> && product.n_columns <= n_columns_of_rows) {
        multiply_rows(product, first_row, end_row);
    } else if (product.n_columns <= n_columns_at_once) {
        multiply_units<Weights>(product, first_row, end_row, panel);
    } else {
        multiply_panels<Weights>(product, first_row, end_row, panel);
    }
}

// ---- activations ----

// Magnitudes are compared by their bits, which grow as they do; NaN is above infinity, and a maximum of floats would lose it.
inline __m256i magnitudes(const float * values) {
    return _mm256_and_si256(read<__m256i>(values), _mm256_set1_epi32(0x7FFFFFFF));
}

inline float largest(__m256i magnitudes) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256(magnitudes, 1));
    half         = _mm_max_epi32(half, _mm_unpackhi_epi64(half, half));
    half         = _mm_max_epi32(half, _mm_srli_epi64(half, 32));
    return _mm_cvtss_f32(_mm_castsi128_ps(half));
}

template <typename Weights> inline BlockFactor factor_of(float scale, int32_t sum) {
    BlockFactor factor;
    factor.scale = scale;
    if (Weights::offset != 0) {
        factor.start = -Weights::offset * sum;
    } else {
        factor.sum = scale * static_cast<float>(sum);
    }
    return factor;
}

// One scale for own_block numbers, the largest of which becomes 127 or -127. It is not finite where one of them is not.
template <typename Weights> void quantise(const float * column, size_t depth, int8_t * codes, BlockFactor * factors) {
    for (size_t k = 0; k < depth; k += Weights::own_block) {
        __m256i most = _mm256_setzero_si256();
        for (size_t i = 0; i < Weights::own_block; i += 8) {
            most = _mm256_max_epi32(most, magnitudes(column + k + i));
        }
        const float  size   = largest(most);
        const float  scale  = size / 127.0f;
        const __m256 invert = _mm256_set1_ps(size > 0.0f ? 127.0f / size : 0.0f);
        for (size_t i = k; i < k + Weights::own_block; i += n_block) {
            __m256i whole[4];
            for (size_t part = 0; part < 4; ++part) {
                whole[part] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(column + i + 8 * part), invert));
            }
            const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
            const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes + i), bytes);

            const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
            const int32_t sums[] = { sum_of(_mm256_castsi256_si128(fours)), sum_of(_mm256_extracti128_si256(fours, 1)) };
            BlockFactor * factor = factors + i / Weights::block;
            if (Weights::block == n_block) {
                factor[0] = factor_of<Weights>(scale, sums[0] + sums[1]);
            } else {
                factor[0] = factor_of<Weights>(scale, sums[0]);
                factor[1] = factor_of<Weights>(scale, sums[1]);
            }
        }
    }
}

template <typename Weights> constexpr TypeProducts products_for() {
    constexpr int together = Weights::interleaved ? 8 : 1;
    return { Weights::type, { together, together > 1 ? 8 : 0 }, Weights::block, 1, quantise<Weights>, multiply<Weights> };
}

constexpr TypeProducts types[] = {
    products_for<Q4_0>(), products_for<Q4_1>(), products_for<Q5_0>(), products_for<Q5_1>(), products_for<Q8_0>(), products_for<IQ4_NL>(),
    products_for<Q4_K>(), products_for<Q5_K>(), products_for<Q6_K>(), products_for<Q4_0x8>(), products_for<IQ4_NLx8>(), products_for<Q4_Kx8>(),
    {},
};

bool runs_here() {
#if defined(EDGEKV_DOT4) && defined(__AVX512VNNI__)
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#elif defined(EDGEKV_DOT4) && defined(__AVXVNNI__)
    return __builtin_cpu_supports("avxvnni");
#else
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
}

} // namespace

extern const Products EDGEKV_OF_SET(products_);
const Products        EDGEKV_OF_SET(products_) = { EDGEKV_TEXT(EDGEKV_INSTRUCTIONS), runs_here, types };

} // namespace edgekv
