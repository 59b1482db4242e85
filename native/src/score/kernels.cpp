// Compiled once for each set of instructions, with its options; EDGEKV_INSTRUCTIONS is its name. It calls no inline function of
// a header: the linker would keep one copy for all, perhaps one that this processor cannot run.
#include "score/kernels.h"

#include <cstring>
#include <math.h>

#define EDGEKV_JOIN_(a, b) a##b
#define EDGEKV_JOIN(a, b)  EDGEKV_JOIN_(a, b)
#define EDGEKV_TEXT_(a)    #a
#define EDGEKV_TEXT(a)     EDGEKV_TEXT_(a)

namespace edgekv {

namespace {

// Vectors are as wide as a register, since a compiler keeps wider ones in memory. n_rows_at_once of them for each row leave
// enough chains of additions to hide their latency, and fit the registers.
#if defined(__AVX512F__)
constexpr size_t width = 16, n_rows_at_once = 12;
#elif defined(__AVX__)
constexpr size_t width = 8, n_rows_at_once = 6;
#elif defined(__aarch64__)
constexpr size_t width = 4, n_rows_at_once = 6;
#else
constexpr size_t width = 4, n_rows_at_once = 3;
#endif
constexpr size_t n_parts = n_lanes / width; // vectors of a panel's row

#if defined(__GNUC__)

using Vector = float __attribute__((vector_size(width * sizeof(float))));

#else

struct Vector {
    float v[width];
};

Vector & operator+=(Vector & a, const Vector & b) {
    for (size_t i = 0; i < width; ++i) {
        a.v[i] += b.v[i];
    }
    return a;
}

Vector operator*(float a, Vector b) {
    for (float & x : b.v) {
        x *= a;
    }
    return b;
}

#endif

Vector load(const float * src) {
    Vector vector;
    std::memcpy(&vector, src, sizeof(vector));
    return vector;
}

// exp(x) for x <= 0, to 4e-6 of its value at -80 and 5e-7 near 0; 0 from about -88 down. A loop over it vectorises.
float exp_negative(float x) {
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

float magnitude(float x) { return x < 0.0f ? -x : x; } // NaN stays one

float dot(const float * a, const float * b, size_t n) {
    float sum = 0.0f;
    for (size_t i = 0; i < n; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

float squared_distance(const float * a, const float * b, size_t n) {
    float sum = 0.0f;
    for (size_t i = 0; i < n; ++i) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return sum;
}

void add_scaled(float * sum, float weight, const float * row, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        sum[i] += weight * row[i];
    }
}

// products[r][p]: rows [0, n) with vector p of the panel's rows
template <size_t n>
void multiply_tile(const float * rows, size_t stride, const float * panel, size_t depth, Vector (&products)[n][n_parts]) {
    Vector sums[n][n_parts] = {};
    for (size_t k = 0; k < depth; ++k) {
        Vector column[n_parts];
        for (size_t p = 0; p < n_parts; ++p) {
            column[p] = load(panel + k * n_lanes + p * width);
        }
#pragma GCC unroll 12
        for (size_t r = 0; r < n; ++r) {
            const float factor = rows[r * stride + k];
#pragma GCC unroll 4
            for (size_t p = 0; p < n_parts; ++p) {
                sums[r][p] += factor * column[p];
            }
        }
    }
    std::memcpy(products, sums, sizeof(sums));
}

// Call f(row, its products) for each row.
template <typename F> void each_product(const float * rows, size_t stride, size_t n_rows, const float * panel, size_t depth, F f) {
    size_t first = 0;
    for (; first + n_rows_at_once <= n_rows; first += n_rows_at_once) {
        Vector products[n_rows_at_once][n_parts];
        multiply_tile<n_rows_at_once>(rows + first * stride, stride, panel, depth, products);
        for (size_t r = 0; r < n_rows_at_once; ++r) {
            f(first + r, products[r]);
        }
    }
    for (; first < n_rows; ++first) {
        Vector products[1][n_parts];
        multiply_tile<1>(rows + first * stride, stride, panel, depth, products);
        f(first, products[0]);
    }
}

void multiply(const float * rows, size_t stride, size_t n_rows, const float * panel, size_t depth, float * products) {
    each_product(rows, stride, n_rows, panel, depth, [&](size_t row, const Vector (&product)[n_parts]) {
        std::memcpy(products + row * n_lanes, product, sizeof(product));
    });
}

void add_norm1(const float * rows, size_t stride, size_t n_rows, const float * panel, size_t depth, float * sums) {
    each_product(rows, stride, n_rows, panel, depth, [&](size_t, const Vector (&product)[n_parts]) {
        float output[n_lanes];
        std::memcpy(output, product, sizeof(output));
        for (size_t i = 0; i < n_lanes; ++i) {
            sums[i] += magnitude(output[i]);
        }
    });
}

bool add_softmax(float * logits, size_t n, const int32_t * positions, const int32_t * limits, float softcap, const float * shares,
                 float * weights) {
    constexpr float largest = 3.402823466e38f;

    int32_t n_spoilt[n_lanes] = {};
    float   most[n_lanes];
    for (float & value : most) {
        value = -INFINITY;
    }
    for (size_t j = 0; j < n; ++j) {
        float * row = logits + j * n_lanes;
        if (softcap > 0.0f) { // it would make a number of -inf
            for (size_t i = 0; i < n_lanes; ++i) {
                row[i] = magnitude(row[i]) <= largest ? softcap * tanhf(row[i] / softcap) : NAN;
            }
        }
        const int32_t position = positions[j];
        for (size_t i = 0; i < n_lanes; ++i) {
            const bool seen = position <= limits[i];
            n_spoilt[i] += seen && !(magnitude(row[i]) <= largest);
            row[i]  = seen ? row[i] : -INFINITY;
            most[i] = row[i] > most[i] ? row[i] : most[i];
        }
    }
    float   least[n_lanes];
    int32_t n_all = 0;
    for (size_t i = 0; i < n_lanes; ++i) {
        n_all += n_spoilt[i];
        least[i] = most[i] == -INFINITY ? 0.0f : most[i]; // so that a lane that sees nothing is exp(-inf) throughout
    }
    if (n_all > 0) {
        return false;
    }
    float sums[n_lanes] = {};
    for (size_t j = 0; j < n; ++j) {
        float * row = logits + j * n_lanes;
        for (size_t i = 0; i < n_lanes; ++i) {
            row[i] = exp_negative(row[i] - least[i]);
            sums[i] += row[i];
        }
    }
    float factors[n_lanes];
    for (size_t i = 0; i < n_lanes; ++i) {
        factors[i] = sums[i] > 0.0f ? shares[i] / sums[i] : 0.0f;
    }
    for (size_t j = 0; j < n; ++j) {
        const float * row = logits + j * n_lanes;
        float *       sum = weights + j * n_lanes;
        for (size_t i = 0; i < n_lanes; ++i) {
            sum[i] += factors[i] * row[i];
        }
    }
    return true;
}

void sum_lanes(const float * rows, size_t n, float * sums) {
    for (size_t j = 0; j < n; ++j) {
        float sum = 0.0f;
        for (size_t i = 0; i < n_lanes; ++i) {
            sum += rows[j * n_lanes + i];
        }
        sums[j] = sum;
    }
}

bool runs_here() {
#if defined(__x86_64__) && defined(__GNUC__) && defined(__AVX512F__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
#elif defined(__x86_64__) && defined(__GNUC__) && defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

} // namespace

extern const Kernels EDGEKV_JOIN(kernels_, EDGEKV_INSTRUCTIONS);
const Kernels        EDGEKV_JOIN(kernels_, EDGEKV_INSTRUCTIONS) = {
    EDGEKV_TEXT(EDGEKV_INSTRUCTIONS), runs_here, dot, squared_distance, add_scaled, multiply, add_norm1, add_softmax, sum_lanes,
};

} // namespace edgekv
