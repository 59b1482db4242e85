// Vectors as wide as a register, for the sources that are compiled once for each set of instructions. All of it is each source's
// own: such a source calls no inline function that others share, of which the linker would keep one copy, perhaps one that this
// processor cannot run.
#pragma once

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && defined(__AVX__)
#    include <immintrin.h>
#elif defined(__GNUC__) && defined(__aarch64__)
#    include <arm_neon.h>
#endif

#define EDGEKV_JOIN_(a, b)  a##b
#define EDGEKV_JOIN(a, b)   EDGEKV_JOIN_(a, b)
#define EDGEKV_OF_SET(name) EDGEKV_JOIN(name, EDGEKV_INSTRUCTIONS)

namespace edgekv {

namespace {

// Vectors are as wide as a register, since a compiler keeps wider ones in memory. n_rows_at_once of them for each row leave
// enough chains of additions to hide their latency, and fit the registers.
#if !defined(__GNUC__)
constexpr size_t width = 1, n_rows_at_once = 3; // whatever the compiler makes of it
#elif defined(__AVX512F__)
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
using Whole  = int32_t __attribute__((vector_size(width * sizeof(float))));

inline Whole  whole_of(Vector x) { return __builtin_convertvector(x, Whole); }
inline Vector float_of(Whole x) { return __builtin_convertvector(x, Vector); }

#else // the same on one number

using Vector = float;
using Whole  = int32_t;

inline Whole  whole_of(Vector x) { return static_cast<Whole>(x); }
inline Vector float_of(Whole x) { return static_cast<Vector>(x); }

#endif

template <typename To, typename From> inline To bits_of(From from) {
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

inline Vector load(const float * src) {
    Vector vector;
    std::memcpy(&vector, src, sizeof(vector));
    return vector;
}

inline void store(float * dst, Vector vector) { std::memcpy(dst, &vector, sizeof(vector)); }

// sum + a * b, rounded once where the processor can. A compiler that chooses which of several products it fuses would round sums of the
// same numbers differently.
inline Vector plus_product(Vector sum, Vector a, Vector b) {
#if defined(__GNUC__) && defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, sum);
#elif defined(__GNUC__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, sum);
#elif defined(__GNUC__) && defined(__aarch64__)
    return vfmaq_f32(sum, a, b);
#else
    return sum + a * b;
#endif
}

// Elements of a and b in turn: of the first halves, and of the second ones.
#if !defined(__GNUC__)
inline Vector zip_low(Vector a, Vector) { return a; } // vectors of one element have nothing to add up
inline Vector zip_high(Vector, Vector) { return 0.0f; }
#elif defined(__AVX512F__)
inline Vector zip_low(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Vector zip_high(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(__AVX__)
inline Vector zip_low(Vector a, Vector b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline Vector zip_high(Vector a, Vector b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
inline Vector zip_low(Vector a, Vector b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline Vector zip_high(Vector a, Vector b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

// The elements of each of n vectors, every `step`-th of an array, joined by f(Vector, Vector), as one vector; n = width.
template <size_t n, typename F> inline Vector joined(const Vector * vectors, F f, size_t step = 1) {
    if constexpr (n == 1) {
        return *vectors;
    } else {
        const Vector even = joined<n / 2>(vectors, f, 2 * step);
        const Vector odd  = joined<n / 2>(vectors + step, f, 2 * step);
        return f(zip_low(even, odd), zip_high(even, odd));
    }
}

inline Vector sums_of(const Vector (&vectors)[width]) {
    return joined<width>(vectors, [](Vector a, Vector b) { return a + b; });
}

// The sum of n numbers, or vectors, a power of two: the second half is added to the first one, and so on.
template <typename T, size_t n> inline T added(T (&parts)[n]) {
#pragma GCC unroll 4
    for (size_t half = n / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
        for (size_t i = 0; i < half; ++i) {
            parts[i] += parts[i + half];
        }
    }
    return parts[0];
}

inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

constexpr int32_t infinity = 0x7F800000; // the bits of one

inline Vector all(float x) { return x - Vector{}; }

// exp(x) for x <= 0, to 4e-6 of its value at -80 and 5e-7 near 0; 0 from about -88 down.
inline Vector exp_negative(Vector x) {
    const Vector scaled = x * 1.44269504f;
    const Vector power  = scaled > -127.0f ? scaled : all(-127.0f);
    const Whole  whole  = whole_of(power - 0.5f);
    const Vector part   = power - float_of(whole); // in [-0.5, 0.5]

    Vector y = all(1.535336188319500e-4f); // 2^part, Taylor's terms of exp(part ln 2) fitted to the interval
    y        = y * part + 1.339887440266574e-3f;
    y        = y * part + 9.618437357674640e-3f;
    y        = y * part + 5.550332471162809e-2f;
    y        = y * part + 2.402264791363012e-1f;
    y        = y * part + 6.931472028550421e-1f;
    y        = y * part + 1.0f;
    return bits_of<Vector>(bits_of<Whole>(y) + whole * (1 << 23));
}

inline Vector magnitude(Vector x) { return bits_of<Vector>(bits_of<Whole>(x) & 0x7FFFFFFF); }

} // namespace

} // namespace edgekv
