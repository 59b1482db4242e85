// The two passes of a scan over tiles of keys. Compiled once for each set of instructions, as kernels.cpp is.
#include "kernels/kernels.h"
#include "kernels/panel_products.h"
#include "kernels/vectors.h"

#include <math.h>

namespace edgekv {

namespace {

// Keys and panels that are multiplied at once. With two panels a key is loaded half as often, if registers hold the sums.
#if defined(__AVX512F__)
constexpr size_t n_keys_at_once = 12, n_panels_at_once = 2;
#else
constexpr size_t n_keys_at_once = n_rows_at_once, n_panels_at_once = 1;
#endif

// Write the logits of n panels from `panel` on to scratch, (n_keys, n * n_lanes).
template <size_t n> void multiply(const KeyTile & tile, size_t panel) {
    const Matrix  keys    = { tile.keys, tile.dim, 1 };
    const float * queries = tile.queries + panel * tile.dim * n_lanes;
    const auto    keep    = [&](size_t key, Vector (&logits)[n * n_parts]) {
        cap(logits, tile.softcap);
        std::memcpy(tile.scratch + key * n * n_lanes, logits, sizeof(logits));
    };
    switch (tile.dim) { // most heads have one of these
        case 64: each_product<n_keys_at_once, 64, n>(keys, tile.n_keys, queries, tile.dim, keep); break;
        case 128: each_product<n_keys_at_once, 128, n>(keys, tile.n_keys, queries, tile.dim, keep); break;
        default: each_product<n_keys_at_once, 0, n>(keys, tile.n_keys, queries, tile.dim, keep); break;
    }
}

// Call f(first, n) once the logits of n vectors of lanes, from lane `first` on, lie in scratch; so for all panels.
template <typename F> void each_panels(const KeyTile & tile, F f) {
    size_t panel = 0;
    for (; panel + n_panels_at_once <= tile.n_panels; panel += n_panels_at_once) {
        multiply<n_panels_at_once>(tile, panel);
        f(panel * n_lanes, n_panels_at_once * n_parts);
    }
    for (; panel < tile.n_panels; ++panel) {
        multiply<1>(tile, panel);
        f(panel * n_lanes, n_parts);
    }
}

// As add_exponentials, of one vector of lanes, whose logits lie `stride` floats apart.
void add_lanes(const float * logits, size_t stride, size_t n_keys, float * most, float * sums) {
    const Vector before  = load(most);
    Vector       now     = before;
    Whole        largest = {}; // magnitude, in bits: they grow as floats do, and NaN is above inf
    for (size_t key = 0; key < n_keys; ++key) {
        const Vector logit = load(logits + key * stride);
        const Whole  bits  = bits_of<Whole>(logit) & 0x7FFFFFFF;
        largest            = bits > largest ? bits : largest;
        now                = larger(logit, now);
    }
    Vector sum = load(sums) * exp_negative(before - now);
    for (size_t key = 0; key < n_keys; ++key) {
        sum += exp_negative(load(logits + key * stride) - now);
    }
    store(most, now);
    store(sums, largest >= infinity ? all(NAN) : sum);
}

} // namespace

void EDGEKV_OF_SET(add_exponentials_)(const KeyTile & tile, float * most, float * sums);

void EDGEKV_OF_SET(add_exponentials_)(const KeyTile & tile, float * most, float * sums) {
    each_panels(tile, [&](size_t first, size_t n) {
        for (size_t p = 0; p < n; ++p) {
            add_lanes(tile.scratch + p * width, n * width, tile.n_keys, most + first + p * width, sums + first + p * width);
        }
    });
}

void EDGEKV_OF_SET(largest_weights_)(const KeyTile & tile, const float * log_sums, float * weights);

void EDGEKV_OF_SET(largest_weights_)(const KeyTile & tile, const float * log_sums, float * weights) {
    for (size_t key = 0; key < tile.n_keys; ++key) {
        weights[key] = -INFINITY;
    }
    each_panels(tile, [&](size_t first, size_t n) {
        for (size_t key = 0; key < tile.n_keys; key += width) {
            Vector most[width];
            for (size_t i = 0; i < width; ++i) {
                const float * logits = tile.scratch + (key + i) * n * width;
                most[i]              = load(logits) - load(log_sums + first);
                for (size_t p = 1; p < n; ++p) {
                    most[i] = larger(load(logits + p * width) - load(log_sums + first + p * width), most[i]);
                }
            }
            store(weights + key, larger(joined<width>(most, larger), load(weights + key)));
        }
    });
    for (size_t key = 0; key < tile.n_keys; key += width) {
        store(weights + key, exp_negative(load(weights + key)));
    }
}

} // namespace edgekv
