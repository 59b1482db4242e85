#include "side_by_side.h"

#include <stdexcept>

namespace {

constexpr int sixes = 0;

// A field of a block of the file, and how many bytes of each row lie together; `sixes` are scales and minima of six bits.
struct Field {
    size_t offset, size;
    int    n_together;
};

// In the order in which they lie.
std::vector<Field> fields_of(ggml_type type, int n_bytes) {
    switch (type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_IQ4_NL: return { { 0, 2, 2 }, { 2, 16, n_bytes } };
        case GGML_TYPE_MXFP4: return { { 0, 1, 1 }, { 1, 16, n_bytes } };
        case GGML_TYPE_Q2_K: return { { 80, 2, 2 }, { 82, 2, 2 }, { 0, 16, 2 }, { 16, 64, n_bytes } };
        case GGML_TYPE_Q8_0: return { { 0, 2, 2 }, { 2, 32, n_bytes } };
        case GGML_TYPE_Q4_K: return { { 0, 2, 2 }, { 2, 2, 2 }, { 4, 12, sixes }, { 16, 128, n_bytes } };
        case GGML_TYPE_Q5_K: return { { 0, 2, 2 }, { 2, 2, 2 }, { 4, 12, sixes }, { 16, 32, n_bytes }, { 48, 128, n_bytes } };
        case GGML_TYPE_Q6_K: return { { 208, 2, 2 }, { 192, 16, 1 }, { 0, 128, n_bytes }, { 128, 64, n_bytes } };
        default: throw std::invalid_argument("a type that is not repacked");
    }
}

// The i-th of eight scales, and of eight minima, of six bits each in 12 bytes.
int scale_of(const uint8_t * bytes, int i) { return i < 4 ? bytes[i] & 63 : (bytes[i + 4] & 15) | (bytes[i - 4] >> 6) << 4; }
int minimum_of(const uint8_t * bytes, int i) { return i < 4 ? bytes[i + 4] & 63 : bytes[i + 4] >> 4 | (bytes[i] >> 6) << 4; }

void put_six(uint8_t * bytes, int i, int scale, int minimum) {
    if (i < 4) {
        bytes[i] |= scale;
        bytes[i + 4] |= minimum;
    } else {
        bytes[i + 4] |= (scale & 15) | (minimum & 15) << 4;
        bytes[i - 4] |= scale >> 4 << 6;
        bytes[i] |= minimum >> 4 << 6;
    }
}

} // namespace

std::vector<uint8_t> side_by_side(ggml_type type, const std::vector<uint8_t> & rows, size_t row_bytes, edgekv_row_order order) {
    const size_t         n_rows = order.n_rows, block_bytes = ggml_type_size(type);
    std::vector<uint8_t> out;
    for (size_t first = 0; first < rows.size(); first += n_rows * row_bytes) {
        for (size_t at = first; at < first + row_bytes; at += block_bytes) {
            for (const Field & field : fields_of(type, order.n_bytes)) {
                const auto of_row = [&](size_t row) { return rows.data() + at + row * row_bytes + field.offset; };
                if (field.n_together == sixes) { // of one part of eight rows, in place of eight parts of a row
                    for (int part = 0; part < 8; ++part) {
                        uint8_t bytes[12] = {};
                        for (int row = 0; row < 8; ++row) {
                            put_six(bytes, row, scale_of(of_row(row), part), minimum_of(of_row(row), part));
                        }
                        out.insert(out.end(), bytes, bytes + sizeof(bytes));
                    }
                    continue;
                }
                const size_t  n    = field.n_together;
                const uint8_t flip = type == GGML_TYPE_Q4_0 && field.size > 2 ? 0x88 : 0; // codes become signed
                for (size_t i = 0; i < n_rows * field.size; ++i) {
                    const size_t row = i / n % n_rows, byte = i / n / n_rows * n + i % n;
                    out.push_back(of_row(row)[byte] ^ flip);
                }
            }
        }
    }
    return out;
}
