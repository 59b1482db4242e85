#include "archive/row_transfer.h"

#include <cstring>
#include <numeric>

namespace edgekv {

RowTransfer::RowTransfer(const edgekv_cache & cache) : cache_(cache) {
    rows_.reserve(cache.is_copied() ? most_rows : 0);
}

void RowTransfer::set_pool(size_t number) {
    pool_     = &cache_.pools()[number];
    graphs_   = cache_.workspace().moving(number);
    packet_   = { pool_->k->nb[1], pool_->v == pool_->k ? 0 : pool_->v->nb[1], 0, 0 };
    capacity_ = graphs_ != nullptr ? std::min(most_bytes, graphs_->packet_bytes()) : most_bytes;
}

size_t RowTransfer::n_fitting() const {
    const size_t of_a_row = packet_.key_bytes + packet_.value_bytes + 2 * sizeof(int32_t);
    return std::min((capacity_ - 4 * Graph::alignment) / of_a_row, most_rows / 2);
}

RowReader::Rows RowReader::copied(const uint32_t * firsts, size_t n_runs, uint32_t n, Room & room) {
    packet_.n_keys   = n_runs * n;
    packet_.n_values = packet_.value_bytes > 0 ? packet_.n_keys : 0;
    room.emplace_back(new char[packet_.key_rows()]);
    char * const keys = room.back().get(), * const values = keys + packet_.values();
    if (graphs_ != nullptr) {
        rows_.resize(packet_.n_keys);
        for (size_t i = 0; i < n_runs; ++i) {
            std::iota(rows_.begin() + i * n, rows_.begin() + (i + 1) * n, static_cast<int32_t>(firsts[i]));
        }
        graphs_->gather(packet_, rows_.data(), keys);
        return { keys, values };
    }
    for (size_t i = 0; i < n_runs; ++i) {
        ggml_backend_tensor_get(pool_->k, keys + i * n * packet_.key_bytes, firsts[i] * packet_.key_bytes, n * packet_.key_bytes);
        ggml_backend_tensor_get(pool_->v, values + i * n * packet_.value_bytes, firsts[i] * packet_.value_bytes, n * packet_.value_bytes);
    }
    return { keys, values };
}

RowReader::Rows RowReader::in_place(uint32_t row) const {
    return { static_cast<const char *>(pool_->k->data) + row * packet_.key_bytes,
             static_cast<const char *>(pool_->v->data) + row * packet_.value_bytes };
}

void RowWriter::write(bool values, size_t row, const char * bytes) {
    const size_t size = values ? packet_.value_bytes : packet_.key_bytes;
    if (!is_copied()) {
        ggml_backend_tensor_set(values ? pool_->v : pool_->k, bytes, row * size, size);
        return;
    }
    if (!values && packet_.n_values > 0) {
        finish();
    }
    size_t & n = values ? packet_.n_values : packet_.n_keys;
    ++n;
    if (!fits()) {
        --n;
        finish();
        ++n;
    }
    std::memcpy(room_.data() + (values ? packet_.values() : 0) + (n - 1) * size, bytes, size);
    rows_.push_back(static_cast<int32_t>(row));
}

void RowWriter::finish() {
    if (rows_.empty()) {
        return;
    }
    const int32_t * const value_rows = rows_.data() + packet_.n_keys;
    if (graphs_ != nullptr) {
        std::memcpy(room_.data() + packet_.key_rows(), rows_.data(), packet_.n_keys * sizeof(int32_t));
        std::memcpy(room_.data() + packet_.value_rows(), value_rows, packet_.n_values * sizeof(int32_t));
        graphs_->scatter(packet_, room_.data());
    } else {
        send_runs(pool_->k, room_.data(), rows_.data(), packet_.n_keys);
        send_runs(pool_->v, room_.data() + packet_.values(), value_rows, packet_.n_values);
    }
    packet_.n_keys = packet_.n_values = 0;
    rows_.clear();
}

// Rows that lie together are sent at once.
void RowWriter::send_runs(ggml_tensor * to, const char * bytes, const int32_t * rows, size_t n) const {
    const size_t size = to->nb[1];
    for (size_t begin = 0, end = 0; begin < n; begin = end) {
        do {
            ++end;
        } while (end < n && rows[end] == rows[end - 1] + 1);
        ggml_backend_tensor_set(to, bytes + begin * size, rows[begin] * size, (end - begin) * size);
    }
}

} // namespace edgekv
