// Rows of quantised weights, taken four at a time with NEON, and the panels that they become. All of it is each source's own
// (kernels/vectors.h).
#pragma once

#include "matmul/mul_mat.h"
#include "matmul/products.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <algorithm>
#include <arm_neon.h>
#include <cstring>

namespace edgekv {

namespace {

// Numbers of a row that lie together: `smmla` multiplies 8 of two rows, `sdot` 4 of four.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr size_t n_along = 8;
#else
constexpr size_t n_along = 4;
#endif

constexpr size_t n_panel_rows = 16, panel_depth = n_panel_weights / n_panel_rows; // that are unpacked together
static_assert(EDGEKV_ROWS_TOGETHER % n_panel_rows == 0, "panels are whole");

constexpr size_t n_super = 256, n_fours = n_panel_rows / 4; // rows are taken by four

// A weight is scale * code + minimum, or delta * part * code + minimum where parts of a block have whole numbers for scales.
struct Panel {
    int8_t *  codes;  // (depth / n_along, 16, n_along)
    float *   scales; // (depth / 32, 16)
    int32_t * parts;  // (depth / part, 16), in the memory of scales
    float *   minima; // (depth / part, 16)
    float *   deltas; // (depth / 256, 16)
};

// 16 bytes of each of four rows, in a panel's order: n_along of each row at a time.
struct Square {
    uint8x16_t of[4];
};

inline uint8x16_t bytes_of(uint32x4_t words) { return vreinterpretq_u8_u32(words); }

// Four vectors, the elements of which become vectors.
struct Words {
    uint32x4_t of[4];
};
inline Words transposed(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
    const uint32x4_t ac = vzip1q_u32(a, c), bd = vzip1q_u32(b, d), ac2 = vzip2q_u32(a, c), bd2 = vzip2q_u32(b, d);
    return { { vzip1q_u32(ac, bd), vzip2q_u32(ac, bd), vzip1q_u32(ac2, bd2), vzip2q_u32(ac2, bd2) } };
}

// `at` returns 16 bytes of a row.
template <typename At> inline Square square_of(const At & at) {
    if constexpr (n_along == 8) {
        const uint64x2_t a = vreinterpretq_u64_u8(at(0)), b = vreinterpretq_u64_u8(at(1)), c = vreinterpretq_u64_u8(at(2)),
                         d = vreinterpretq_u64_u8(at(3));
        return { { vreinterpretq_u8_u64(vzip1q_u64(a, b)), vreinterpretq_u8_u64(vzip1q_u64(c, d)),
                   vreinterpretq_u8_u64(vzip2q_u64(a, b)), vreinterpretq_u8_u64(vzip2q_u64(c, d)) } };
    } else {
        const auto  row   = [&](size_t i) { return vreinterpretq_u32_u8(at(i)); };
        const Words words = transposed(row(0), row(1), row(2), row(3));
        return { { bytes_of(words.of[0]), bytes_of(words.of[1]), bytes_of(words.of[2]), bytes_of(words.of[3]) } };
    }
}

// The same of rows that lie side by side, the `which`-th four of them.
template <int n_rows, int n_bytes> inline Square square_of(const uint8_t * bytes, size_t which) {
    static_assert(n_bytes == 4 || n_bytes == 8, "four rows are two or four vectors");
    const auto at = [&](size_t i) {
        return vld1q_u8(bytes + (n_bytes == 4 ? 4 * n_rows * i + 16 * which : 8 * n_rows * (i / 2) + 32 * which + 16 * (i % 2)));
    };
    if constexpr (n_bytes == n_along) {
        return { { at(0), at(1), at(2), at(3) } };
    } else {
        Square square;
        for (size_t i = 0; i < 4; i += 2) {
            const uint32x4_t a = vreinterpretq_u32_u8(at(i)), b = vreinterpretq_u32_u8(at(i + 1));
            square.of[i]     = bytes_of(n_along == 8 ? vzip1q_u32(a, b) : vuzp1q_u32(a, b));
            square.of[i + 1] = bytes_of(n_along == 8 ? vzip2q_u32(a, b) : vuzp2q_u32(a, b));
        }
        return square;
    }
}

// Where codes of four rows go: 16 numbers of each, from the 16 * i-th on.
class Codes {
  public:
    Codes(const Panel & panel, size_t first, size_t four) : codes_(panel.codes + first * n_panel_rows + four * 4 * n_along) {}

    template <typename Code> void put(size_t i, const Code & code) const { // `code` makes the j-th vector
        for (size_t j = 0; j < 4; ++j) {
            const size_t at = n_along == 4 ? j * 64 : j / 2 * 128 + j % 2 * 16;
            vst1q_s8(codes_ + i * 16 * n_panel_rows + at, code(j));
        }
    }

  private:
    int8_t * codes_;
};

// ---- four rows of weights: how they lie ----

inline float32x4_t floats_of(const ggml_half * halves) {
    uint16x4_t bits;
    std::memcpy(&bits, halves, sizeof(bits));
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
}

inline const uint8_t * unsigned_of(const uint8_t * bytes) { return bytes; }
inline const uint8_t * unsigned_of(const int8_t * bytes) { return reinterpret_cast<const uint8_t *>(bytes); }

// Each by itself. Those past the last row are the last one.
template <typename Type> struct Apart {
    using Block = Type;
    static constexpr edgekv_row_order order = { 1, 0 };

    const char * rows[4];

    Apart(const Product & product, size_t row, size_t end_row) {
        for (size_t r = 0; r < 4; ++r) {
            rows[r] = product.weights + std::min(row + r, end_row - 1) * product.row_bytes;
        }
    }

    const Block & block(size_t row, size_t i) const { return reinterpret_cast<const Block *>(rows[row])[i]; }

    // Of block `i`: what `field` finds in it.
    template <typename Field> float32x4_t floats(size_t i, const Field & field) const {
        const ggml_half halves[] = { field(block(0, i)), field(block(1, i)), field(block(2, i)), field(block(3, i)) };
        return floats_of(halves);
    }

    // The same of 16 bytes, from `offset` on.
    template <typename Field> Square bytes(size_t i, const Field & field, size_t offset) const {
        return square_of([&](size_t row) { return vld1q_u8(unsigned_of(field(block(row, i))) + offset); });
    }
};

// n_rows of them side by side.
template <typename Type, int n_rows, int n_bytes> struct Together {
    using Block = Type;
    static constexpr edgekv_row_order order = { n_rows, n_bytes };

    const Block * blocks;
    size_t        which; // four of them

    Together(const Product & product, size_t row, size_t end_row) {
        const size_t found = std::min(row, end_row - 1);
        blocks             = reinterpret_cast<const Block *>(product.weights + found / n_rows * n_rows * product.row_bytes);
        which              = found % n_rows / 4;
    }

    template <typename Field> float32x4_t floats(size_t i, const Field & field) const {
        return floats_of(field(blocks[i]) + 4 * which);
    }

    template <typename Field> Square bytes(size_t i, const Field & field, size_t offset) const {
        return square_of<n_rows, n_bytes>(unsigned_of(field(blocks[i])) + n_rows * offset, which);
    }
};

} // namespace

} // namespace edgekv
