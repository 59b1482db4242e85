// Sixteen floats at once, in whatever registers the processor has, and the two loops that scoring spends its time in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace edgekv {

constexpr size_t n_lanes     = 16;
constexpr size_t n_tile_rows = 6; // with one vector of accumulators each they fit AVX2's registers as well

#if defined(__GNUC__) || defined(__clang__)

using Lanes = float __attribute__((vector_size(n_lanes * sizeof(float))));

#else

struct Lanes {
    float v[n_lanes];
};

inline Lanes & operator+=(Lanes & a, const Lanes & b) {
    for (size_t i = 0; i < n_lanes; ++i) {
        a.v[i] += b.v[i];
    }
    return a;
}

inline Lanes operator*(float a, Lanes b) {
    for (float & x : b.v) {
        x *= a;
    }
    return b;
}

#endif

inline Lanes load(const float * src) {
    Lanes lanes;
    std::memcpy(&lanes, src, sizeof(lanes));
    return lanes;
}

inline void store(float * dst, const Lanes & lanes) { std::memcpy(dst, &lanes, sizeof(lanes)); }

// Dot products of n_tile_rows rows, `row_stride` floats apart, with n_lanes columns: panel (depth, n_lanes).
inline void multiply(const float * rows, size_t row_stride, const float * panel, size_t depth, Lanes (&products)[n_tile_rows]) {
    Lanes sums[n_tile_rows] = {};
    for (size_t k = 0; k < depth; ++k) {
        const Lanes column = load(panel + k * n_lanes);
        for (size_t r = 0; r < n_tile_rows; ++r) {
            sums[r] += rows[r * row_stride + k] * column;
        }
    }
    for (size_t r = 0; r < n_tile_rows; ++r) {
        products[r] = sums[r];
    }
}

// Write n_lanes rows (n_lanes, depth) as one panel (depth, n_lanes).
inline void pack(const float * rows, size_t depth, float * panel) {
    for (size_t k = 0; k < depth; ++k) {
        for (size_t i = 0; i < n_lanes; ++i) {
            panel[k * n_lanes + i] = rows[i * depth + k];
        }
    }
}

// exp(x) for x <= 0, to 4e-6 of its value at -80 and 5e-7 near 0; 0 from about -88 down. A loop over it vectorises.
inline float exp_negative(float x) {
    const float   power = x * 1.44269504f < -127.0f ? -127.0f : x * 1.44269504f;
    const int32_t whole = static_cast<int32_t>(power - 0.5f);
    const float   part  = power - static_cast<float>(whole); // in [-0.5, 0.5]

    float y = 1.535336188319500e-4f; // 2^part, Taylor's terms of exp(part ln 2) fitted to the interval
    y       = y * part + 1.339887440266574e-3f;
    y       = y * part + 9.618437357674640e-3f;
    y       = y * part + 5.550332471162809e-2f;
    y       = y * part + 2.402264791363012e-1f;
    y       = y * part + 6.931472028550421e-1f;
    y       = y * part + 1.0f;

    int32_t bits;
    std::memcpy(&bits, &y, sizeof(bits));
    bits += static_cast<int32_t>(static_cast<uint32_t>(whole) << 23);
    std::memcpy(&y, &bits, sizeof(y));
    return y;
}

} // namespace edgekv
