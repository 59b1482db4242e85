#include "cache/cells.h"

#include <cstring>

namespace edgekv {

namespace {

template <typename Array> auto at_row(Array & array, size_t row) { return array.empty() ? nullptr : array.data() + row; }

template <typename T> void move_rows(std::vector<T> & array, size_t from, size_t to, size_t n) {
    if (!array.empty()) {
        std::memmove(array.data() + to, array.data() + from, n * sizeof(T));
    }
}

} // namespace

CellArrays::CellArrays(size_t n_rows, const CellParts & parts) :
    position_(n_rows), rope_position_(parts.repositions ? n_rows : 0), order_(n_rows), accumulated_(parts.accumulates ? n_rows : 0),
    wo_norm_(parts.wo_norms ? n_rows : 0) {}

HeadCells CellArrays::at(size_t row, uint32_t n) {
    return { n,
             at_row(position_, row),
             at_row(rope_position_, row),
             at_row(order_, row),
             at_row(accumulated_, row),
             at_row(wo_norm_, row) };
}

HeadView CellArrays::at(size_t row, uint32_t n) const {
    return { n,
             at_row(position_, row),
             at_row(rope_position_, row),
             at_row(order_, row),
             at_row(accumulated_, row),
             at_row(wo_norm_, row) };
}

void CellArrays::move(size_t from, size_t to, size_t n) {
    move_rows(position_, from, to, n);
    move_rows(rope_position_, from, to, n);
    move_rows(order_, from, to, n);
    move_rows(accumulated_, from, to, n);
    move_rows(wo_norm_, from, to, n);
}

size_t CellArrays::bytes(size_t n_rows, const CellParts & parts) {
    return n_rows * (sizeof(int32_t) * (parts.repositions ? 2 : 1) + sizeof(uint32_t) +
                     sizeof(float) * ((parts.accumulates ? 1 : 0) + (parts.wo_norms ? 1 : 0)));
}

WorkArrays::WorkArrays(size_t n_rows, const CellParts & parts, float * new_norms) :
    next(parts.accumulates ? n_rows : 0), keep_(n_rows), score_(n_rows), of_part_(parts.of_parts ? n_rows : 0),
    softmax_(parts.softmax ? n_rows : 0), of_value_(parts.of_values ? n_rows : 0), new_norms_(new_norms) {}

HeadWork WorkArrays::at(size_t row) {
    return { at_row(keep_, row),
             at_row(score_, row),
             at_row(of_part_, row),
             at_row(softmax_, row),
             at_row(of_value_, row),
             at_row(next, row),
             new_norms_ != nullptr ? new_norms_ + row : nullptr };
}

size_t WorkArrays::bytes(size_t n_rows, const CellParts & parts) {
    const size_t n_more = (parts.accumulates ? 1 : 0) + (parts.of_parts ? 1 : 0) + (parts.softmax ? 1 : 0) + (parts.of_values ? 1 : 0);
    return n_rows * (sizeof(uint8_t) + sizeof(float) * (1 + n_more));
}

} // namespace edgekv
