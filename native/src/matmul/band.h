// Registers whose lanes of 32 bits are rows of weights: 16 of AVX-512, or 8 of AVX2. All of it is each source's own (kernels/vectors.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

// Compilers leave calls in a loop whose registers they would fill, and then pass them through memory.
#define EDGEKV_INLINE inline __attribute__((always_inline))

namespace edgekv {

namespace {

inline __m128i load16(const void * src) { return _mm_loadu_si128(static_cast<const __m128i *>(src)); }

// Bytes that are 255 where one of 32 bits is set, else 0.
inline __m256i set_bytes(int32_t bits) {
    const __m256i byte  = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i which = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte), which), which);
}

#if defined(__AVX512VNNI__)

constexpr size_t n_band = 16;

using Wide       = __m512i;
using WideFloats = __m512;

// 16 bytes of every fourth row, from row `first` on. They are blended as they are loaded, which leaves shuffles to what needs them.
template <typename At> EDGEKV_INLINE Wide each_fourth(const At & at, size_t first) {
    Wide rows = _mm512_broadcast_i32x4(load16(at(first)));
    rows      = _mm512_mask_broadcast_i32x4(rows, 0x00F0, load16(at(first + 4)));
    rows      = _mm512_mask_broadcast_i32x4(rows, 0x0F00, load16(at(first + 8)));
    return _mm512_mask_broadcast_i32x4(rows, 0xF000, load16(at(first + 12)));
}

// 32 bytes of row `row`, and of the fourth one after it; those that `mask` leaves out are not read.
template <typename At> EDGEKV_INLINE Wide two_rows(const At & at, size_t row, uint32_t mask) {
    const auto load = [&](size_t i) {
        return mask == ~0u ? _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at(i))) : _mm256_maskz_loadu_epi8(mask, at(i));
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(load(row)), load(row + 4), 1);
}

inline Wide each_quarter(__m128i bytes) { return _mm512_broadcast_i32x4(bytes); }
inline Wide all_bytes(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
inline Wide all_words(int word) { return _mm512_set1_epi32(word); }
inline Wide low_words(Wide a, Wide b) { return _mm512_unpacklo_epi32(a, b); }
inline Wide high_words(Wide a, Wide b) { return _mm512_unpackhi_epi32(a, b); }
inline Wide low_pairs(Wide a, Wide b) { return _mm512_unpacklo_epi64(a, b); }
inline Wide high_pairs(Wide a, Wide b) { return _mm512_unpackhi_epi64(a, b); }
inline Wide looked_up(Wide table, Wide index) { return _mm512_shuffle_epi8(table, index); }

// The lower halves of 32 bits as floats of two bytes.
inline WideFloats floats_of_halves(Wide words) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)); }

// Of two times eight rows that lie side by side: 8 bytes of each, the first four of all rows and the last four; and of each eight
// what is 8 floats or numbers of two bytes, or 16 bytes, the first 8 or the last 8 of which count.
struct Eights {
    const char * blocks[2];

    explicit Eights(const char * const * rows) : blocks{ rows[0], rows[8] } {}

    template <typename At> void words(const At & at, Wide & first, Wide & second) const {
        const Wide a = _mm512_loadu_si512(at(blocks[0])), b = _mm512_loadu_si512(at(blocks[1]));
        const Wide even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        first  = _mm512_permutex2var_epi32(a, even, b);
        second = _mm512_permutex2var_epi32(a, even | all_words(1), b);
    }
    template <typename At> WideFloats halves(const At & at) const {
        return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(load16(at(blocks[0]))), load16(at(blocks[1])), 1));
    }
    template <typename At> Wide shorts(const At & at) const {
        return _mm512_cvtepu16_epi32(_mm256_inserti128_si256(_mm256_castsi128_si256(load16(at(blocks[0]))), load16(at(blocks[1])), 1));
    }
    template <typename At> Wide first_bytes(const At & at) const {
        return _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(at(blocks[0]), at(blocks[1])));
    }
    template <typename At> Wide last_bytes(const At & at) const {
        return _mm512_cvtepu8_epi32(_mm_unpackhi_epi64(at(blocks[0]), at(blocks[1])));
    }
};

#else

constexpr size_t n_band = 8;

using Wide       = __m256i;
using WideFloats = __m256;

template <typename At> EDGEKV_INLINE Wide each_fourth(const At & at, size_t first) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(at(first))), load16(at(first + 4)), 1);
}

inline Wide each_quarter(__m128i bytes) { return _mm256_broadcastsi128_si256(bytes); }
inline Wide all_bytes(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
inline Wide all_words(int word) { return _mm256_set1_epi32(word); }
inline Wide low_words(Wide a, Wide b) { return _mm256_unpacklo_epi32(a, b); }
inline Wide high_words(Wide a, Wide b) { return _mm256_unpackhi_epi32(a, b); }
inline Wide low_pairs(Wide a, Wide b) { return _mm256_unpacklo_epi64(a, b); }
inline Wide high_pairs(Wide a, Wide b) { return _mm256_unpackhi_epi64(a, b); }
inline Wide looked_up(Wide table, Wide index) { return _mm256_shuffle_epi8(table, index); }

inline WideFloats floats_of_halves(Wide words) {
    const Wide low    = _mm256_and_si256(words, all_words(0xFFFF));
    const Wide packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

struct Eights {
    const char * block;

    explicit Eights(const char * const * rows) : block(rows[0]) {}

    template <typename At> void words(const At & at, Wide & first, Wide & second) const {
        const auto * floats = reinterpret_cast<const float *>(at(block));
        const __m256 a = _mm256_loadu_ps(floats), b = _mm256_loadu_ps(floats + 8); // of four rows, and of four more
        first  = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), 0xD8);
        second = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)), 0xD8);
    }
    template <typename At> WideFloats halves(const At & at) const { return _mm256_cvtph_ps(load16(at(block))); }
    template <typename At> Wide       shorts(const At & at) const { return _mm256_cvtepu16_epi32(load16(at(block))); }
    template <typename At> Wide       first_bytes(const At & at) const { return _mm256_cvtepu8_epi32(at(block)); }
    template <typename At> Wide       last_bytes(const At & at) const { return _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(at(block), at(block))); }
};

#endif

using Words = uint32_t __attribute__((vector_size(sizeof(Wide))));
using Signs = int32_t __attribute__((vector_size(sizeof(Wide))));

inline Wide right(Wide words, int n) { return (Wide)((Words)words >> n); }
inline Wide left(Wide words, int n) { return (Wide)((Words)words << n); }

inline WideFloats floats_of(Wide words) { return __builtin_convertvector((Signs)words, WideFloats); }

// 16 bytes of each row as four registers: the first four bytes of all rows, the next four and so on.
struct Groups {
    Wide of[4];
};

template <typename At> EDGEKV_INLINE Groups groups_of(const At & at) {
    const Wide a = each_fourth(at, 0), b = each_fourth(at, 1), c = each_fourth(at, 2), d = each_fourth(at, 3);
    const Wide ab = low_words(a, b), cd = low_words(c, d), ab2 = high_words(a, b), cd2 = high_words(c, d);
    return { { low_pairs(ab, cd), high_pairs(ab, cd), low_pairs(ab2, cd2), high_pairs(ab2, cd2) } };
}

// The same of 32 bytes.
struct EightGroups {
    Wide of[8];
};

#if defined(__AVX512VNNI__)

template <typename At> EDGEKV_INLINE EightGroups eight_groups_of(const At & at, uint32_t mask = ~0u) {
    const auto four = [&](size_t first) { // rows, and the four after them: words 0 and 4, 1 and 5, 2 and 6, 3 and 7
        const Wide a = two_rows(at, first, mask), b = two_rows(at, first + 1, mask);
        const Wide c = two_rows(at, first + 2, mask), d = two_rows(at, first + 3, mask);
        const Wide ab = low_words(a, b), cd = low_words(c, d), ab2 = high_words(a, b), cd2 = high_words(c, d);
        return Groups{ { low_pairs(ab, cd), high_pairs(ab, cd), low_pairs(ab2, cd2), high_pairs(ab2, cd2) } };
    };
    const Groups low = four(0), high = four(8);
    EightGroups  all;
    for (size_t i = 0; i < 4; ++i) {
        all.of[i]     = _mm512_shuffle_i64x2(low.of[i], high.of[i], 0x88);
        all.of[4 + i] = _mm512_shuffle_i64x2(low.of[i], high.of[i], 0xDD);
    }
    return all;
}

#else

template <typename At> EDGEKV_INLINE EightGroups eight_groups_of(const At & at) {
    const Groups a = groups_of(at), b = groups_of([&](size_t row) { return at(row) + 16; });
    return { { a.of[0], a.of[1], a.of[2], a.of[3], b.of[0], b.of[1], b.of[2], b.of[3] } };
}

#endif

} // namespace

} // namespace edgekv
