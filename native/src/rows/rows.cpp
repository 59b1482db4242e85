#include "rows/rows.h"

#include "hooks/status.h"
#include "rope/rope_undo.h"

#include <vector>

namespace edgekv {

Rows::Rows(const edgekv_rows & rows, const RopeUndo * undo, const int32_t * positions) :
    data_(static_cast<const char *>(rows.data)), n_(rows.n), dim_(rows.dim), rotation_(rows.rotation),
    stride_(rows.stride_bytes), adjacent_(false), convert_(row_to_float(rows.type)), undo_(undo), positions_(positions) {
    const auto type = static_cast<ggml_type>(rows.type);
    require(rows.data != nullptr || rows.n == 0, "rows.data is NULL");
    require(rows.dim > 0 && rows.dim % ggml_blck_size(type) == 0, "rows.dim is not whole blocks of the type");
    require(rows.n <= 1 || rows.stride_bytes >= ggml_row_size(type, rows.dim), "rows.stride_bytes is less than a row");
    require(rotation_ == 0 || ((rotation_ & (rotation_ - 1)) == 0 && dim_ % rotation_ == 0),
            "rows.rotation is not a power of two that divides rows.dim");
    adjacent_ = stride_ == ggml_row_size(type, dim_);
}

void Rows::read(size_t first, size_t n, float * dst) const {
    if (adjacent_) {
        convert_(data_ + first * stride_, dst, static_cast<int64_t>(n * dim_));
    }
    for (size_t i = 0; !adjacent_ && i < n; ++i) {
        convert_(data_ + (first + i) * stride_, dst + i * dim_, dim_);
    }
    for (size_t i = 0; undo_ != nullptr && i < n; ++i) {
        float * row = dst + i * dim_;
        if (rotation_ > 0) {
            rotate_hadamard(row, dim_, rotation_);
        }
        undo_->turn_back(row, positions_[first + i]);
    }
}

void convert(const Rows & rows, int32_t type, uint32_t rotation, void * dst, size_t dst_size) {
    const ggml_from_float_t write  = row_from_float(type);
    const size_t            n_row  = ggml_row_size(static_cast<ggml_type>(type), rows.dim());
    const Rows              checked({ sizeof(edgekv_rows), type, dst, rows.n(), n_row, uint32_t(rows.dim()), rotation });
    if (dst_size / n_row < rows.n()) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "dst holds %zu bytes, but %zu rows of %zu are to be written", dst_size, rows.n(), n_row);
    }
    std::vector<float> row(rows.dim());
    for (size_t i = 0; i < checked.n(); ++i) {
        rows.read(i, row.data());
        for (const uint32_t run : { rows.rotation(), rotation }) {
            if (run > 0 && rows.rotation() != rotation) {
                rotate_hadamard(row.data(), rows.dim(), run);
            }
        }
        write(row.data(), static_cast<char *>(dst) + i * n_row, rows.dim());
    }
}

} // namespace edgekv
