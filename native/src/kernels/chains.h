// Products of keys with queries that are rows, in the order of sums of queries that are lanes. A product is the sum of n_key_chains chains,
// each of every n_key_chains-th number: a quarter of a register holds as many adjacent numbers of a cell. All of it is each source's own
// (vectors.h).
#pragma once

#include "kernels/vectors.h"

namespace edgekv {

namespace {

constexpr size_t n_key_chains = width < 4 ? 1 : 4;

// Adjacent numbers of as many cells as fit, which lie `step` floats apart; the same numbers for each of them; and the elements of a and b
// in turn: of the first halves of each cell's numbers, and of the second ones.
#if defined(__GNUC__) && defined(__AVX__)
inline __m256 of_two_cells(const float * src, size_t step) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src)), _mm_loadu_ps(src + step), 1);
}
#endif
#if defined(__GNUC__) && defined(__AVX512F__)
inline Vector of_cells(const float * src, size_t step) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(of_two_cells(src, step)), of_two_cells(src + 2 * step, step), 1);
}
inline Vector for_cells(const float * src) { return _mm512_broadcast_f32x4(_mm_loadu_ps(src)); }
inline Vector halves_low(Vector a, Vector b) { return _mm512_unpacklo_ps(a, b); }
inline Vector halves_high(Vector a, Vector b) { return _mm512_unpackhi_ps(a, b); }
#elif defined(__GNUC__) && defined(__AVX__)
inline Vector of_cells(const float * src, size_t step) { return of_two_cells(src, step); }
inline Vector for_cells(const float * src) { return _mm256_broadcast_ps(reinterpret_cast<const __m128 *>(src)); }
inline Vector halves_low(Vector a, Vector b) { return _mm256_unpacklo_ps(a, b); }
inline Vector halves_high(Vector a, Vector b) { return _mm256_unpackhi_ps(a, b); }
#else // one cell, or one number of it
inline Vector of_cells(const float * src, size_t) { return load(src); }
inline Vector for_cells(const float * src) { return load(src); }
inline Vector halves_low(Vector a, Vector b) { return zip_low(a, b); }
inline Vector halves_high(Vector a, Vector b) { return zip_high(a, b); }
#endif

// The sums of n chains of each cell, as added() has them; vector i has those of every n-th cell from the i-th on.
template <size_t n> inline Vector sums_of_chains(const Vector (&chains)[n]) {
    if constexpr (n == 1) {
        return chains[0];
    } else {
        static_assert(n == 4);
        const Vector even = halves_low(chains[0], chains[2]) + halves_high(chains[0], chains[2]);
        const Vector odd  = halves_low(chains[1], chains[3]) + halves_high(chains[1], chains[3]);
        return halves_low(even, odd) + halves_high(even, odd);
    }
}

} // namespace

} // namespace edgekv
