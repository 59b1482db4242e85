// Weights of each type, unpacked: some rows of them, in the order in which four numbers of a row are multiplied at once. All of it is
// each source's own (kernels/vectors.h).
#pragma once

#include "matmul/band.h"
#include "matmul/mul_mat.h"
#include "matmul/products.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstring>

namespace edgekv {

namespace {

// A weight is scale * (code - offset) + minimum, or delta times that if scales are whole numbers.
struct Panel {
    uint8_t * codes;  // (depth / 4, n_panel_rows, 4)
    float *   scales; // (depth / block, n_panel_rows); whole numbers are int32_t, or pairs of equal int16_t where pairs are added up
    float *   minima; // (depth / block, n_panel_rows); whole numbers are pairs of int16_t
    float *   deltas; // (depth / 256, n_panel_rows); whole minima times them are taken away
};

// Where a register cannot add up products of four bytes, pairs of products are added up in 16 bits, as long as they fit.
#if defined(EDGEKV_DOT4)
constexpr bool adds_four = true;
#else
constexpr bool adds_four = false;
#endif

// Rows that are unpacked together: two registers of AVX-512, or of AVX2. So each four numbers of a column that are loaded are multiplied
// twice, and loads do not hold up the multiplications.
#if defined(__AVX512VNNI__) || defined(EDGEKV_DOT4_EMULATED)
constexpr size_t n_panel_rows = 32;
#else
constexpr size_t n_panel_rows = 16;
#endif
constexpr size_t panel_depth = n_panel_weights / n_panel_rows, n_bands = n_panel_rows / n_band;
static_assert(EDGEKV_ROWS_TOGETHER % n_panel_rows == 0, "panels are whole");

constexpr size_t n_block = 32, n_super = 256, n_group = 4 * n_panel_rows; // a group: 4 numbers of each row

inline Wide low_half(Wide bytes) { return bytes & all_bytes(15); }
inline Wide high_half(Wide bytes) { return low_half(right(bytes, 4)); }

// Bits `from` and up of every byte, n_bits of them, moved to bit `to`.
template <int n_bits, int to = 4> inline Wide moved_bits(Wide bytes, int from) {
    return (from < to ? left(bytes, to - from) : right(bytes, from - to)) & all_bytes(((1 << n_bits) - 1) << to);
}

// Bits `from` and up of every four bytes, n_bits of them.
template <int n_bits> inline Wide field_of(Wide words, size_t from) { return right(words, static_cast<int>(from)) & all_words((1 << n_bits) - 1); }

// Numbers of 16 bits, twice in each four bytes.
inline Wide twice(Wide words) { return (words & all_words(0xFFFF)) | left(words, 16); }

inline void put(uint8_t * codes, size_t group, size_t band, Wide value) {
    std::memcpy(codes + group * n_group + band * sizeof(Wide), &value, sizeof(value));
}

inline void put(float * dst, WideFloats values) { std::memcpy(dst, &values, sizeof(values)); }

template <typename Block> inline const Block * block_of(const char * row, size_t i) { return reinterpret_cast<const Block *>(row) + i; }

// The rows that follow, which are fetched into the caches meanwhile. They are short: a processor finds no stream in them.
class Ahead {
  public:
    Ahead() = default; // none

    // A part of n_bytes of each of n rows, in n_steps.
    Ahead(const char * first, size_t row_bytes, size_t n_bytes, size_t n, size_t n_steps)
        : row_(first), row_bytes_(row_bytes), n_bytes_(n_bytes), n_left_(n * ((n_bytes + line - 1) / line)), n_at_once_(n_left_ / n_steps + 1) {}

    void fetch() {
        if (__builtin_expect(n_left_ == 0, 1)) { // as for all tiles but the first
            return;
        }
        for (size_t i = 0; i < n_at_once_ && n_left_ > 0; ++i, --n_left_) {
            _mm_prefetch(row_ + at_, _MM_HINT_T0);
            at_ += line;
            if (at_ >= n_bytes_) {
                at_ = 0;
                row_ += row_bytes_;
            }
        }
    }

  private:
    static constexpr size_t line = 64;

    const char * row_       = nullptr;
    size_t       row_bytes_ = 0, n_bytes_ = 0, n_left_ = 0, n_at_once_ = 0;
    size_t       at_ = 0;
};

} // namespace

} // namespace edgekv
