// Compiled once for each set of instructions, with its options; EDGEKV_INSTRUCTIONS is its name. EDGEKV_DOT4 is defined where a
// register adds up products of four bytes (`vpdpbusd`).
#include "kernels/vectors.h"
#include "matmul/column_tiles.h"
#include "matmul/few_rows.h"
#include "matmul/panel_folded.h"
#include "matmul/panel_grids.h"
#include "matmul/row_eights.h"
#include "matmul/tile_sums.h"

#include <algorithm>
#include <type_traits>

namespace edgekv {

namespace {

#define EDGEKV_TEXT_(a) #a
#define EDGEKV_TEXT(a)  EDGEKV_TEXT_(a)

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

template <typename Row> void multiply_rows(const Product & product, size_t first_row, size_t end_row) {
    each_tile<Row::most_columns>(product, Row::Weights::block, first_row, 0, [&](const auto & tile) {
        for (size_t row = first_row; row < end_row; ++row) {
            multiply_row<Row>(product.weights + row * product.row_bytes, product.row_bytes, product.columns.depth / n_super, tile, row - first_row);
        }
    });
}

// Products of up to so many columns that panels are slower for.
struct FewColumns {
    size_t most = 0;
    void (*multiply)(const Product & product, size_t first_row, size_t end_row) = nullptr;
};

template <typename Row> constexpr FewColumns by_rows() { return { Row::most_columns, multiply_rows<Row> }; }
template <typename Weights, typename Block> constexpr FewColumns by_eights() { return { 1, multiply_eights<Weights, Block> }; }

template <typename Weights> constexpr FewColumns few_columns = {};
template <> constexpr FewColumns few_columns<Q4_0>   = by_eights<Q4_0, block_q4_0>();
template <> constexpr FewColumns few_columns<Q4_1>   = by_eights<Q4_1, block_q4_1>();
template <> constexpr FewColumns few_columns<Q5_0>   = by_eights<Q5_0, block_q5_0>();
template <> constexpr FewColumns few_columns<Q5_1>   = by_eights<Q5_1, block_q5_1>();
template <> constexpr FewColumns few_columns<Q8_0>   = by_eights<Q8_0, block_q8_0>();
template <> constexpr FewColumns few_columns<IQ4_NL> = by_eights<IQ4_NL, block_iq4_nl>();
template <> constexpr FewColumns few_columns<Q2_K>   = adds_four ? by_rows<RowQ2_K>() : FewColumns{};
template <> constexpr FewColumns few_columns<Q3_K>   = adds_four ? by_rows<RowQ3_K>() : FewColumns{};
template <> constexpr FewColumns few_columns<Q6_K>   = adds_four ? by_rows<RowQ6_K>() : FewColumns{};
template <typename Grid> constexpr FewColumns few_columns<OfGrid<Grid>> = by_rows<RowOfGrid<Grid>>();

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
    constexpr FewColumns few = few_columns<Weights>;
    if (few.multiply != nullptr && product.n_columns <= few.most) {
        few.multiply(product, first_row, end_row);
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
        int32_t      sum    = 0; // of a block's numbers so far
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
            if (Weights::has_fours) {
                factor[0].scale = scale;
                factor[0].start = (sums[0] & 0xFFFF) | sums[1] * (1 << 16);
            } else if (Weights::block < n_block) {
                factor[0] = factor_of<Weights>(scale, sums[0]);
                factor[1] = factor_of<Weights>(scale, sums[1]);
            } else {
                sum       = (i % Weights::block == 0 ? 0 : sum) + sums[0] + sums[1];
                factor[0] = factor_of<Weights>(scale, sum);
            }
        }
    }
}

template <typename Weights> constexpr TypeProducts products_for(int64_t fewest_columns = 1) {
    constexpr int together = Weights::interleaved ? 8 : 1;
    return { Weights::type, { together, together > 1 ? 8 : 0 }, Weights::block, fewest_columns, quantise<Weights>, multiply<Weights> };
}

// Two types are unpacked more slowly than ggml multiplies one column, unless there are products row by row.
constexpr TypeProducts types[] = {
    products_for<Q4_0>(),
    products_for<Q4_1>(),
    products_for<Q5_0>(),
    products_for<Q5_1>(),
    products_for<Q8_0>(),
    products_for<IQ4_NL>(),
    products_for<MXFP4>(),
    products_for<Q2_K>(adds_four ? 1 : n_fewest_columns),
    products_for<Q3_K>(adds_four ? 1 : n_fewest_columns),
    products_for<Q4_K>(),
    products_for<Q5_K>(),
    products_for<Q6_K>(),
    products_for<IQ4_XS>(),
    products_for<OfGrid<Iq2Xxs>>(),
    products_for<OfGrid<Iq2Xs>>(),
    products_for<OfGrid<Iq2S>>(),
    products_for<OfGrid<Iq3Xxs>>(),
    products_for<OfGrid<Iq3S>>(),
    products_for<Q4_0x8>(),
    products_for<IQ4_NLx8>(),
    products_for<MXFP4x8>(),
    products_for<Q2_Kx8>(n_fewest_columns),
    products_for<Q4_Kx8>(),
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
