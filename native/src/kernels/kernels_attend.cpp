// Attention of queries to a tile of cells. Compiled once for each set of instructions, as kernels.cpp is.
#include "kernels/kernels.h"
#include "kernels/panel_products.h"
#include "kernels/vectors.h"

#include <math.h>

namespace edgekv {

namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr size_t n_columns_at_once = 4; // vectors of a row of values: with four queries they fit the registers
#else
constexpr size_t n_columns_at_once = 2;
#endif

// Rows that a panel is multiplied with at once: dimensions and tiles are multiples of 16.
#if defined(__AVX512F__)
constexpr size_t n_panel_rows = 16;
#else
constexpr size_t n_panel_rows = n_rows_at_once;
#endif

// logits (n_queries, stride)
void multiply_keys(const AttentionTile & tile, size_t stride) {
    for (size_t first = 0; first < tile.n_cells; first += width) {
        const float * keys = tile.keys + first * tile.dim_k;
        for (size_t q = 0; q < tile.n_queries; ++q) {
            const float * query = tile.queries + q * tile.dim_k;
            Vector        sums[width] = {};
            for (size_t k = 0; k < tile.dim_k; k += width) {
                const Vector part = load(query + k);
#pragma GCC unroll 16
                for (size_t c = 0; c < width; ++c) {
                    sums[c] += load(keys + c * tile.dim_k + k) * part;
                }
            }
            store(tile.logits + q * stride + first, sums_of(sums));
        }
    }
}

Whole load_whole(const int32_t * src) {
    Whole vector;
    std::memcpy(&vector, src, sizeof(vector));
    return vector;
}

// Turn a query's logits (n,) into exp(logit - most), 0 of cells that it does not see, and bring `most` and `sum` up to date. It sees
// at least one cell. Returns what the sums of before are worth now.
float weigh(float * logits, size_t n, uint32_t n_seen, const int32_t * hidden, float softcap, float & most, float & sum) {
    if (softcap > 0.0f) { // it would make a number of -inf
        for (size_t c = 0; c < n_seen; ++c) {
            const bool is_finite = (bits_of<int32_t>(logits[c]) & 0x7FFFFFFF) < infinity;
            logits[c]            = is_finite ? softcap * tanhf(logits[c] / softcap) : NAN;
        }
    }
    Whole   largest = {}; // magnitude, in bits: they grow as floats do, and NaN is above inf
    Vector  top     = all(most);
    int32_t lanes[width];
    for (size_t i = 0; i < width; ++i) {
        lanes[i] = static_cast<int32_t>(i);
    }
    const Whole lane = load_whole(lanes);
    for (size_t c = 0; c < n; c += width) {
        Whole        is_seen = lane < static_cast<int32_t>(n_seen) - static_cast<int32_t>(c);
        is_seen              = hidden != nullptr ? is_seen & (load_whole(hidden + c) == 0) : is_seen;
        const Vector all_of  = load(logits + c);
        const Vector logit   = is_seen ? all_of : all(-INFINITY);
        const Whole  bits    = is_seen ? bits_of<Whole>(all_of) & 0x7FFFFFFF : Whole{};
        largest              = bits > largest ? bits : largest;
        top                  = logit > top ? logit : top;
        store(logits + c, logit);
    }
    int32_t largest_of[width];
    float   top_of[width];
    std::memcpy(largest_of, &largest, sizeof(largest));
    store(top_of, top);
    float now = most;
    for (size_t i = 0; i < width; ++i) {
        now = top_of[i] > now ? top_of[i] : now;
        sum = largest_of[i] >= infinity ? NAN : sum;
    }
    Vector sums = {};
    for (size_t c = 0; c < n; c += width) {
        const Vector weight = exp_negative(load(logits + c) - now);
        sums += weight;
        store(logits + c, weight);
    }
    float sums_of_lanes[width], factor[width];
    store(sums_of_lanes, sums);
    store(factor, exp_negative(all(most - now)));
    sum *= factor[0];
    for (const float part : sums_of_lanes) {
        sum += part;
    }
    most = now;
    return factor[0];
}

// out (n, dim_v) += weights (n, n_cells) times values (n_cells, dim_v): vectors [0, n_columns) of the columns from `column` on
template <size_t n, size_t n_columns> void add_columns(const AttentionTile & tile, size_t stride, size_t first, size_t column) {
    const float * weights = tile.logits + first * stride;
    float *       out     = tile.out + first * tile.dim_v + column;
    Vector sums[n][n_columns];
    for (size_t q = 0; q < n; ++q) {
        for (size_t i = 0; i < n_columns; ++i) {
            sums[q][i] = load(out + q * tile.dim_v + i * width);
        }
    }
    for (size_t c = 0; c < tile.n_cells; ++c) {
        Vector row[n_columns];
#pragma GCC unroll 4
        for (size_t i = 0; i < n_columns; ++i) {
            row[i] = load(tile.values + c * tile.value_stride + column + i * width);
        }
#pragma GCC unroll 4
        for (size_t q = 0; q < n; ++q) {
            const float weight = weights[q * stride + c];
#pragma GCC unroll 4
            for (size_t i = 0; i < n_columns; ++i) {
                sums[q][i] += weight * row[i];
            }
        }
    }
    for (size_t q = 0; q < n; ++q) {
        for (size_t i = 0; i < n_columns; ++i) {
            store(out + q * tile.dim_v + i * width, sums[q][i]);
        }
    }
}

template <size_t n> void add_values(const AttentionTile & tile, size_t stride, size_t first) {
    size_t column = 0;
    for (; column + n_columns_at_once * width <= tile.dim_v; column += n_columns_at_once * width) {
        add_columns<n, n_columns_at_once>(tile, stride, first, column);
    }
    for (; column < tile.dim_v; column += width) {
        add_columns<n, 1>(tile, stride, first, column);
    }
}

// What the lanes of a panel have seen so far.
struct Lanes {
    Vector most[n_parts];
    Vector sums[n_parts];
    Whole  n_seen[n_parts];
    Whole  largest[n_parts]; // magnitude of a logit, in bits: they grow as floats do, and NaN is above inf
    bool   see_all;          // of the cells

    const int32_t * hidden;

    explicit Lanes(const AttentionPanel & panel) : largest{}, see_all(panel.hidden == nullptr), hidden(panel.hidden) {
        std::memcpy(most, panel.most, sizeof(most));
        std::memcpy(sums, panel.sums, sizeof(sums));
        std::memcpy(n_seen, panel.n_seen, sizeof(n_seen));
        for (size_t i = 0; i < n_lanes; ++i) {
            see_all = see_all && panel.n_seen[i] >= static_cast<int32_t>(panel.n_cells);
        }
    }

    // Take a cell's logits in; one that a lane does not see becomes -inf.
    void see(size_t cell, Vector (&logits)[n_parts]) {
        for (size_t p = 0; p < n_parts; ++p) {
            Whole bits = bits_of<Whole>(logits[p]) & 0x7FFFFFFF;
            if (!see_all) {
                Whole is_seen = n_seen[p] > static_cast<int32_t>(cell);
                is_seen       = hidden != nullptr ? is_seen & (load_whole(hidden + cell * n_lanes + p * width) == 0) : is_seen;
                bits                = is_seen ? bits : Whole{};
                logits[p]           = is_seen ? logits[p] : all(-INFINITY);
            }
            largest[p] = bits > largest[p] ? bits : largest[p];
            most[p]    = logits[p] > most[p] ? logits[p] : most[p];
        }
    }
};

} // namespace

void EDGEKV_OF_SET(attend_panel_)(const AttentionPanel & panel);

void EDGEKV_OF_SET(attend_panel_)(const AttentionPanel & panel) {
    Lanes lanes(panel);
    const auto keep = [&](size_t cell, Vector (&logits)[n_parts]) {
        cap(logits, panel.softcap);
        lanes.see(cell, logits);
        std::memcpy(panel.logits + cell * n_lanes, logits, sizeof(logits));
    };
    const Matrix keys = { panel.keys, panel.dim_k, 1 };
    switch (panel.dim_k) { // most heads have one of these
        case 64: each_product<n_panel_rows, 64>(keys, panel.n_cells, panel.queries, panel.dim_k, keep); break;
        case 128: each_product<n_panel_rows, 128>(keys, panel.n_cells, panel.queries, panel.dim_k, keep); break;
        case 256: each_product<n_panel_rows, 256>(keys, panel.n_cells, panel.queries, panel.dim_k, keep); break;
        default: each_product<n_panel_rows>(keys, panel.n_cells, panel.queries, panel.dim_k, keep); break;
    }

    Vector base[n_parts], factors[n_parts]; // what sums of before are worth now
    for (size_t p = 0; p < n_parts; ++p) {
        base[p]    = lanes.most[p] > -INFINITY ? lanes.most[p] : Vector{}; // exp(-inf) is 0 if a lane has seen nothing
        factors[p] = exp_negative(load(panel.most + p * width) - base[p]);
        lanes.sums[p] *= factors[p];
    }
    for (size_t cell = 0; cell < panel.n_cells; ++cell) {
        for (size_t p = 0; p < n_parts; ++p) {
            float *      logit  = panel.logits + cell * n_lanes + p * width;
            const Vector weight = exp_negative(load(logit) - base[p]);
            lanes.sums[p] += weight;
            store(logit, weight);
        }
    }
    for (size_t p = 0; p < n_parts; ++p) {
        lanes.sums[p] = lanes.largest[p] >= infinity ? all(NAN) : lanes.sums[p];
    }
    std::memcpy(panel.most, lanes.most, sizeof(lanes.most));
    std::memcpy(panel.sums, lanes.sums, sizeof(lanes.sums));

    const auto add = [&](size_t column, const Vector (&products)[n_parts]) {
        for (size_t p = 0; p < n_parts; ++p) {
            float * out = panel.out + column * n_lanes + p * width;
            store(out, load(out) * factors[p] + products[p]);
        }
    };
    each_product<n_panel_rows>({ panel.values, 1, panel.value_stride }, panel.dim_v, panel.logits, panel.n_cells, add);
}

void EDGEKV_OF_SET(attend_tile_)(const AttentionTile & tile);

void EDGEKV_OF_SET(attend_tile_)(const AttentionTile & tile) {
    const size_t stride = (tile.n_cells + n_lanes - 1) / n_lanes * n_lanes;
    multiply_keys(tile, stride);
    for (size_t q = 0; q < tile.n_queries; ++q) {
        float * logits = tile.logits + q * stride;
        if (tile.n_seen[q] == 0) {
            for (size_t c = 0; c < stride; ++c) {
                logits[c] = 0.0f;
            }
            continue;
        }
        const int32_t * hidden = tile.hidden != nullptr ? tile.hidden + q * stride : nullptr;
        const float     factor = weigh(logits, stride, tile.n_seen[q], hidden, tile.softcap, tile.most[q], tile.sums[q]);
        for (size_t k = 0; k < tile.dim_v; ++k) {
            tile.out[q * tile.dim_v + k] *= factor;
        }
    }
    size_t q = 0;
    for (; q + 4 <= tile.n_queries; q += 4) {
        add_values<4>(tile, stride, q);
    }
    switch (tile.n_queries - q) {
        case 3: add_values<3>(tile, stride, q); break;
        case 2: add_values<2>(tile, stride, q); break;
        case 1: add_values<1>(tile, stride, q); break;
        default: break;
    }
}

} // namespace edgekv
