// Compiled once for each set of Arm's instructions, with its options; EDGEKV_INSTRUCTIONS is its name, "dotprod" or "i8mm".
#include "hooks/instructions.h"
#include "kernels/vectors.h"
#include "matmul/column_tiles.h"
#include "matmul/panel_folded_neon.h"
#include "matmul/panel_grids_neon.h"

#include <algorithm>

namespace edgekv {

namespace {

#define EDGEKV_TEXT_(a) #a
#define EDGEKV_TEXT(a)  EDGEKV_TEXT_(a)

constexpr size_t n_columns_at_once = 4; // with the sums of 16 rows they leave registers for the codes

// ---- a tile: 16 rows of a panel times some columns ----

template <size_t n_columns> using Sums   = int32x4_t[n_columns][n_fours];
template <size_t n_columns> using Totals = float32x4_t[n_columns][n_fours];

#if defined(__ARM_FEATURE_MATMUL_INT8)

// Products of the codes of a part, added up.
template <size_t n, size_t n_columns>
inline void add_up(Sums<n_columns> & sums, const int8_t * codes, const Tile<n_columns> & tile, size_t k) {
    constexpr size_t n_pairs = (n_columns + 1) / 2; // a last column without a neighbour is its own
    int32x4_t        squares[n_pairs][n_panel_rows / 2] = {}; // two rows by two columns
#    pragma GCC unroll 4
    for (size_t group = 0; group < n / n_along; ++group) {
        int8x16_t columns[n_pairs];
#    pragma GCC unroll 2
        for (size_t p = 0; p < n_pairs; ++p) {
            const size_t at = k + group * n_along;
            columns[p]      = vcombine_s8(vld1_s8(tile.codes[2 * p] + at), vld1_s8(tile.codes[std::min(2 * p + 1, n_columns - 1)] + at));
        }
#    pragma GCC unroll 8
        for (size_t r = 0; r < n_panel_rows / 2; ++r) {
            const int8x16_t rows = vld1q_s8(codes + group * n_along * n_panel_rows + 2 * r * n_along);
#    pragma GCC unroll 2
            for (size_t p = 0; p < n_pairs; ++p) {
                squares[p][r] = vmmlaq_s32(squares[p][r], rows, columns[p]);
            }
        }
    }
#    pragma GCC unroll 4
    for (size_t c = 0; c < n_columns; ++c) {
#    pragma GCC unroll 4
        for (size_t four = 0; four < n_fours; ++four) {
            const int32x4_t a = squares[c / 2][2 * four], b = squares[c / 2][2 * four + 1];
            sums[c][four]     = c % 2 == 0 ? vuzp1q_s32(a, b) : vuzp2q_s32(a, b);
        }
    }
}

#else

// Four numbers of each row times the `lane`-th four of each column.
template <int lane, size_t n_columns>
inline void add_group(Sums<n_columns> & sums, const int8_t * codes, const int8x16_t (&columns)[n_columns]) {
#    pragma GCC unroll 4
    for (size_t four = 0; four < n_fours; ++four) {
        const int8x16_t rows = vld1q_s8(codes + lane * n_along * n_panel_rows + four * 4 * n_along);
#    pragma GCC unroll 4
        for (size_t c = 0; c < n_columns; ++c) {
            sums[c][four] = vdotq_laneq_s32(sums[c][four], rows, columns[c], lane);
        }
    }
}

// Products of the codes of a part, added up.
template <size_t n, size_t n_columns>
inline void add_up(Sums<n_columns> & sums, const int8_t * codes, const Tile<n_columns> & tile, size_t k) {
#    pragma GCC unroll 4
    for (size_t c = 0; c < n_columns; ++c) {
#    pragma GCC unroll 4
        for (int32x4_t & sum : sums[c]) {
            sum = vdupq_n_s32(0);
        }
    }
#    pragma GCC unroll 2
    for (size_t i = 0; i < n; i += 16) {
        int8x16_t columns[n_columns];
#    pragma GCC unroll 4
        for (size_t c = 0; c < n_columns; ++c) {
            columns[c] = vld1q_s8(tile.codes[c] + k + i);
        }
        const int8_t * groups = codes + i * n_panel_rows;
        add_group<0>(sums, groups, columns);
        add_group<1>(sums, groups, columns);
        add_group<2>(sums, groups, columns);
        add_group<3>(sums, groups, columns);
    }
}

#endif

// Add a block of 32, or of 256 with one scale.
template <typename Weights, size_t n_columns>
inline void add_simple(Totals<n_columns> & totals, const Panel & panel, size_t block, const Tile<n_columns> & tile) {
    constexpr size_t n_factors = Weights::own_block / Weights::block;
    const size_t     k = block * Weights::own_block, at = block * n_panel_rows, first = block * n_factors;
    Sums<n_columns>  sums;
    add_up<Weights::own_block>(sums, panel.codes + k * n_panel_rows, tile, k);
#pragma GCC unroll 4
    for (size_t four = 0; four < n_fours; ++four) {
        const float32x4_t scales = vld1q_f32(panel.scales + at + 4 * four);
#pragma GCC unroll 4
        for (size_t c = 0; c < n_columns; ++c) {
            const float scale = tile.factors[c][first].scale;
            totals[c][four]   = vfmaq_f32(totals[c][four], vmulq_n_f32(vcvtq_f32_s32(sums[c][four]), scale), scales);
            for (size_t i = first; Weights::has_minima && i < first + n_factors; ++i) {
                totals[c][four] = vfmaq_n_f32(totals[c][four], vld1q_f32(panel.minima + i * n_panel_rows + 4 * four), tile.factors[c][i].sum);
            }
        }
    }
}

// Add a block of 256, the activations of which have one scale. The sum over its parts is below 2^28.
template <typename Weights, size_t n_columns>
inline void add_super(Totals<n_columns> & totals, const Panel & panel, size_t block, const Tile<n_columns> & tile) {
    constexpr size_t n_parts = Weights::own_block / Weights::part, n_factors = Weights::own_block / Weights::block;
    Sums<n_columns>  whole   = {};
    for (size_t part = block * n_parts; part < (block + 1) * n_parts; ++part) {
        const size_t    k = part * Weights::part, at = part * n_panel_rows;
        Sums<n_columns> sums;
        add_up<Weights::part>(sums, panel.codes + k * n_panel_rows, tile, k);
#pragma GCC unroll 4
        for (size_t four = 0; four < n_fours; ++four) {
            const int32x4_t scales = vld1q_s32(panel.parts + at + 4 * four);
#pragma GCC unroll 4
            for (size_t c = 0; c < n_columns; ++c) {
                whole[c][four] = vmlaq_s32(whole[c][four], sums[c][four], scales);
                if (Weights::has_minima) {
                    totals[c][four] = vfmaq_n_f32(totals[c][four], vld1q_f32(panel.minima + at + 4 * four), tile.factors[c][part].sum);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (size_t four = 0; four < n_fours; ++four) {
        const float32x4_t deltas = vld1q_f32(panel.deltas + block * n_panel_rows + 4 * four);
#pragma GCC unroll 4
        for (size_t c = 0; c < n_columns; ++c) {
            const float scale = tile.factors[c][block * n_factors].scale;
            totals[c][four]   = vfmaq_f32(totals[c][four], vmulq_n_f32(vcvtq_f32_s32(whole[c][four]), scale), deltas);
        }
    }
}

// Multiply a panel with the columns of a tile: into `out`, or onto it where the panel is not a row's first.
template <typename Weights, size_t n_columns>
void multiply_tile(const Panel & panel, size_t depth, const Tile<n_columns> & tile, bool is_first, size_t n_rows) {
    Totals<n_columns> totals = {};
    for (size_t block = 0; block < depth / Weights::own_block; ++block) {
        if constexpr (Weights::has_parts) {
            add_super<Weights, n_columns>(totals, panel, block, tile);
        } else {
            add_simple<Weights, n_columns>(totals, panel, block, tile);
        }
    }
    for (size_t c = 0; c < n_columns; ++c) {
        float row_sums[n_panel_rows];
        std::memcpy(row_sums, totals[c], sizeof(row_sums));
        for (size_t row = 0; row < n_rows; ++row) {
            tile.out[c][row] = is_first ? row_sums[row] : tile.out[c][row] + row_sums[row];
        }
    }
}

// Unpack the blocks [first, end) of 16 rows.
template <typename Weights, typename Rows>
void unpack(const Product & product, size_t row, size_t end_row, size_t first, size_t end, const Panel & panel) {
    for (size_t four = 0; four < n_fours; ++four) {
        const Rows rows(product, row + 4 * four, end_row);
        for (size_t i = first; i < end; ++i) {
            const size_t scales = (i - first) * (Weights::own_block / Weights::part) * n_panel_rows + 4 * four;
            Weights::unpack(rows, { i, i - first, four, scales }, panel);
        }
    }
}

template <typename Weights, typename Rows>
void multiply(const Product & product, size_t first_row, size_t end_row, void * workspace) {
    auto * const codes    = static_cast<int8_t *>(workspace);
    auto * const scales   = codes + n_panel_rows * panel_depth;
    constexpr size_t n    = n_panel_rows * panel_depth / 16; // scales, of one kind or the other, and minima
    auto * const floats   = reinterpret_cast<float *>(scales);
    const Panel  panel    = { codes, floats, reinterpret_cast<int32_t *>(scales), floats + n, floats + 2 * n };
    const size_t depth    = product.columns.depth;
    const size_t n_slices = (depth + panel_depth - 1) / panel_depth;
    const size_t slice    = ((depth + n_slices - 1) / n_slices + n_super - 1) / n_super * n_super;

    for (size_t row = first_row; row < end_row; row += n_panel_rows) {
        const size_t n_rows = std::min(n_panel_rows, end_row - row);
        for (size_t k = 0; k < depth; k += slice) {
            const size_t k_end = std::min(k + slice, depth);
            unpack<Weights, Rows>(product, row, end_row, k / Weights::own_block, k_end / Weights::own_block, panel);
            each_tile<n_columns_at_once>(product, Weights::block, row, k, [&](const auto & tile) {
                multiply_tile<Weights>(panel, k_end - k, tile, k == 0, n_rows);
            });
        }
    }
}

// ---- activations ----

// One scale for own_block numbers, the largest of which becomes 127 or -127. It is not finite where one of them is not.
template <typename Weights> void quantise(const float * column, size_t depth, int8_t * codes, BlockFactor * factors) {
    for (size_t k = 0; k < depth; k += Weights::own_block) {
        float32x4_t most = vdupq_n_f32(0.0f);
        for (size_t i = k; i < k + Weights::own_block; i += 4) {
            most = vmaxq_f32(most, vabsq_f32(vld1q_f32(column + i)));
        }
        const float size   = vmaxvq_f32(most);
        const float invert = size > 0.0f ? 127.0f / size : 0.0f;
        for (size_t block = k; block < k + Weights::own_block; block += Weights::block) {
            int32_t sum = 0;
            for (size_t i = block; i < block + Weights::block; i += 8) {
                const int32x4_t low  = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(column + i), invert));
                const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(column + i + 4), invert));
                const int8x8_t  some = vqmovn_s16(vcombine_s16(vqmovn_s32(low), vqmovn_s32(high)));
                vst1_s8(codes + i, some);
                sum += vaddlv_s8(some);
            }
            const float scale                = size / 127.0f;
            factors[block / Weights::block] = { scale, scale * static_cast<float>(sum) };
        }
    }
}

template <typename Weights, typename Rows> constexpr TypeProducts products_for() {
    static_assert(sizeof(typename Rows::Block) == Rows::order.n_rows * sizeof(typename Weights::Block), "they take the same bytes");
    return { Weights::type, Rows::order, Weights::block, n_fewest_columns, quantise<Weights>, multiply<Weights, Rows> };
}
template <typename Weights> constexpr TypeProducts as_in_file() { return products_for<Weights, Apart<typename Weights::Block>>(); }
template <typename Weights, int n_rows, int n_bytes> constexpr TypeProducts repacked() {
    return products_for<Weights, Together<typename Weights::template Blocks<n_rows>, n_rows, n_bytes>>();
}

// Repacked by 4 bytes where ggml was compiled for `sdot`, by 8 for `smmla`, and Q4_0 by 8 rows for SVE of 256 bits.
constexpr TypeProducts types[] = {
    as_in_file<Q4_0>(), as_in_file<Q4_1>(), as_in_file<Q5_0>(), as_in_file<Q5_1>(), as_in_file<Q8_0>(),
    as_in_file<IQ4_NL>(), as_in_file<MXFP4>(), as_in_file<Q2_K>(), as_in_file<Q3_K>(), as_in_file<Q4_K>(), as_in_file<Q5_K>(),
    as_in_file<Q6_K>(), as_in_file<IQ4_XS>(), as_in_file<OfGrid<Iq2Xxs>>(), as_in_file<OfGrid<Iq2Xs>>(), as_in_file<OfGrid<Iq2S>>(),
    as_in_file<OfGrid<Iq3Xxs>>(), as_in_file<OfGrid<Iq3S>>(),
    repacked<Q4_0, 4, 4>(), repacked<Q4_0, 4, 8>(), repacked<Q4_0, 8, 8>(), repacked<Q8_0, 4, 4>(), repacked<Q8_0, 4, 8>(),
    repacked<IQ4_NL, 4, 4>(), repacked<MXFP4, 4, 4>(), repacked<Q4_K, 8, 4>(), repacked<Q4_K, 8, 8>(), repacked<Q5_K, 8, 4>(), repacked<Q5_K, 8, 8>(),
    repacked<Q6_K, 8, 4>(), repacked<Q6_K, 8, 8>(), {},
};

bool has_them() { return runs_here(EDGEKV_TEXT(EDGEKV_INSTRUCTIONS)); }

} // namespace

extern const Products EDGEKV_OF_SET(products_);
const Products        EDGEKV_OF_SET(products_) = { EDGEKV_TEXT(EDGEKV_INSTRUCTIONS), has_them, types };

} // namespace edgekv
