// Attention of queries to a tile of cells. Compiled once for each set of instructions, as kernels.cpp is.
#include "kernels/chains.h"
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
constexpr size_t n_queries_at_once = 4; // that are rows

// Rows that a panel is multiplied with at once: dimensions and tiles are multiples of 16.
#if defined(__AVX512F__)
constexpr size_t n_panel_rows = 16;
#else
constexpr size_t n_panel_rows = n_rows_at_once;
#endif

// logits (n, stride) of queries [0, n)
template <size_t n> void multiply_keys(const AttentionTile & tile, const float * queries, size_t stride, float * logits) {
    constexpr size_t n_at_once = n_columns_at_once < n_key_chains ? n_columns_at_once : n_key_chains;
    for (size_t cell = 0; cell < tile.n_cells; cell += width) {
        Vector chains[n][n_key_chains];
        for (size_t i = 0; i < n_key_chains; i += n_at_once) {
            const float * keys = tile.keys + (cell + i) * tile.dim_k;
            Vector        sums[n][n_at_once] = {};
            for (size_t k = 0; k < tile.dim_k; k += n_key_chains) {
                Vector parts[n_at_once];
#pragma GCC unroll 4
                for (size_t j = 0; j < n_at_once; ++j) {
                    parts[j] = of_cells(keys + j * tile.dim_k + k, n_key_chains * tile.dim_k);
                }
#pragma GCC unroll 4
                for (size_t q = 0; q < n; ++q) {
                    const Vector query = for_cells(queries + q * tile.dim_k + k);
#pragma GCC unroll 4
                    for (size_t j = 0; j < n_at_once; ++j) {
                        sums[q][j] = plus_product(sums[q][j], parts[j], query);
                    }
                }
            }
#pragma GCC unroll 4
            for (size_t q = 0; q < n; ++q) {
                std::memcpy(chains[q] + i, sums[q], sizeof(sums[q]));
            }
        }
        for (size_t q = 0; q < n; ++q) {
            store(logits + q * stride + cell, sums_of_chains(chains[q]));
        }
    }
}

Whole load_whole(const int32_t * src) {
    Whole vector;
    std::memcpy(&vector, src, sizeof(vector));
    return vector;
}

// Turn a query's logits (n,) into exp(logit - most), 0 of cells that it does not see, and bring `most` and `sum` up to date.
// Returns what the sums of before are worth now.
float weigh(float * logits, size_t n, uint32_t n_seen, const int32_t * hidden, float softcap, float & most, float & sum) {
    for (size_t c = 0; softcap > 0.0f && c < n_seen; c += width) {
        Vector some[] = { load(logits + c) };
        cap(some, softcap);
        store(logits + c, some[0]);
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
    const float base = now > -INFINITY ? now : 0.0f; // exp(-inf) is 0 if it has seen nothing
    Vector      sums = {};
    for (size_t c = 0; c < n; c += width) {
        const Vector weight = exp_negative(load(logits + c) - base);
        sums += weight;
        store(logits + c, weight);
    }
    const Vector factors = exp_negative(all(most - base)); // in vectors, for the roundings of panels
    float        sums_of_lanes[width], factor[width], sum_now[width];
    store(sums_of_lanes, sums);
    store(factor, factors);
    store(sum_now, plus_product(all(added(sums_of_lanes)), all(sum), factors));
    sum  = sum_now[0];
    most = now;
    return factor[0];
}

// out (n, dim_v), times factors (n,), += weights (n, n_cells) times values (n_cells, dim_v): n_columns vectors from `column` on
template <size_t n, size_t n_columns>
void add_columns(const AttentionTile & tile, const float * weights, size_t stride, const float * factors, size_t column, float * out) {
    Vector sums[n][n_columns] = {};
    for (size_t c = 0; c < tile.n_cells; ++c) {
        Vector row[n_columns];
#pragma GCC unroll 4
        for (size_t i = 0; i < n_columns; ++i) {
            row[i] = load(tile.values + c * tile.value_stride + column + i * width);
        }
#pragma GCC unroll 4
        for (size_t q = 0; q < n; ++q) {
            const Vector weight = all(weights[q * stride + c]);
#pragma GCC unroll 4
            for (size_t i = 0; i < n_columns; ++i) {
                sums[q][i] = plus_product(sums[q][i], weight, row[i]);
            }
        }
    }
#pragma GCC unroll 4
    for (size_t q = 0; q < n; ++q) {
#pragma GCC unroll 4
        for (size_t i = 0; i < n_columns; ++i) {
            float * to = out + q * tile.dim_v + column + i * width;
            store(to, plus_product(sums[q][i], load(to), all(factors[q])));
        }
    }
}

// Queries [first, first + n); the rest of them fewer at a time.
template <size_t n> void attend_queries(const AttentionTile & tile, size_t first = 0) {
    const size_t stride = (tile.n_cells + n_lanes - 1) / n_lanes * n_lanes;
    for (; first + n <= tile.n_queries; first += n) {
        float * logits = tile.logits + first * stride;
        multiply_keys<n>(tile, tile.queries + first * tile.dim_k, stride, logits);
        float factors[n];
        for (size_t q = 0; q < n; ++q) {
            const int32_t * hidden = tile.hidden != nullptr ? tile.hidden + (first + q) * stride : nullptr;
            factors[q] = weigh(logits + q * stride, stride, tile.n_seen[first + q], hidden, tile.softcap, tile.most[first + q], tile.sums[first + q]);
        }
        float * out    = tile.out + first * tile.dim_v;
        size_t  column = 0;
        for (; column + n_columns_at_once * width <= tile.dim_v; column += n_columns_at_once * width) {
            add_columns<n, n_columns_at_once>(tile, logits, stride, factors, column, out);
        }
        for (; column < tile.dim_v; column += width) {
            add_columns<n, 1>(tile, logits, stride, factors, column, out);
        }
    }
    if constexpr (n > 1) {
        attend_queries<n - 1>(tile, first);
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
        case 64: each_product<n_panel_rows, 64, 1, n_key_chains>(keys, panel.n_cells, panel.queries, panel.dim_k, keep); break;
        case 128: each_product<n_panel_rows, 128, 1, n_key_chains>(keys, panel.n_cells, panel.queries, panel.dim_k, keep); break;
        case 256: each_product<n_panel_rows, 256, 1, n_key_chains>(keys, panel.n_cells, panel.queries, panel.dim_k, keep); break;
        default: each_product<n_panel_rows, 0, 1, n_key_chains>(keys, panel.n_cells, panel.queries, panel.dim_k, keep); break;
    }

    Vector base[n_parts], factors[n_parts]; // what sums of before are worth now
    for (size_t p = 0; p < n_parts; ++p) {
        base[p]    = lanes.most[p] > -INFINITY ? lanes.most[p] : Vector{}; // exp(-inf) is 0 if a lane has seen nothing
        factors[p] = exp_negative(load(panel.most + p * width) - base[p]);
    }
    for (size_t p = 0; p < n_parts; ++p) {
        float * weights = panel.logits + p * width;
        for (size_t cell = 0; cell < panel.n_cells; ++cell) {
            store(weights + cell * n_lanes, exp_negative(load(weights + cell * n_lanes) - base[p]));
        }
        Vector sums[width]; // of every width-th cell, as a query that is a row has them in a register
        for (size_t i = 0; i < width; ++i) {
            Vector sum = {};
            for (size_t cell = i; cell < panel.n_cells; cell += width) {
                sum += load(weights + cell * n_lanes);
            }
            sums[i] = sum;
        }
        lanes.sums[p] = plus_product(added(sums), lanes.sums[p], factors[p]);
        lanes.sums[p] = lanes.largest[p] >= infinity ? all(NAN) : lanes.sums[p];
    }
    std::memcpy(panel.most, lanes.most, sizeof(lanes.most));
    std::memcpy(panel.sums, lanes.sums, sizeof(lanes.sums));

    const auto add = [&](size_t column, const Vector (&products)[n_parts]) {
        for (size_t p = 0; p < n_parts; ++p) {
            float * out = panel.out + column * n_lanes + p * width;
            store(out, plus_product(products[p], load(out), factors[p]));
        }
    };
    each_product<n_panel_rows>({ panel.values, 1, panel.value_stride }, panel.dim_v, panel.logits, panel.n_cells, add);
}

void EDGEKV_OF_SET(attend_tile_)(const AttentionTile & tile);

void EDGEKV_OF_SET(attend_tile_)(const AttentionTile & tile) {
    attend_queries<n_queries_at_once>(tile);
}

} // namespace edgekv
