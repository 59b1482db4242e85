#include "cache/query_window.h"

#include "hooks/status.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace edgekv {

QueryWindow::QueryWindow(FlatCache & flat, uint32_t n_rows, uint32_t n_draft, uint32_t n_probe_rows) :
    flat_(flat), memory_(flat.layers().size()), n_rows_(n_rows), n_ring_(static_cast<uint32_t>(n_text_rows(n_rows, n_draft))),
    n_probe_rows_(n_probe_rows), lags_(n_ring_ + n_probe_rows) {
    std::vector<ggml_tensor *> rings;
    for (const FlatCache::Layer & layer : flat.layers()) {
        const size_t n_queries = size_t(layer.n_head()) * layer.head_dim_k;
        rings.push_back(ggml_new_tensor_2d(memory_.at(*layer.k), GGML_TYPE_F32, n_queries, n_ring_ + n_probe_rows));
    }
    memory_.allocate();
    flat.queries().set(std::move(rings));
}

QueryWindow::~QueryWindow() { flat_.queries().set({}); }

void QueryWindow::clear() {
    oldest_  = 0;
    n_probe_ = 0;
}

void QueryWindow::begin_text(int32_t lag) {
    flat_.queries().aim(0, n_ring_, lag);
    probing_ = false;
}

void QueryWindow::begin_probe(int32_t lag) {
    flat_.queries().aim(n_ring_, n_probe_rows_, lag);
    probing_ = true;
}

void QueryWindow::note_written(int32_t p0, uint32_t n) {
    has_probe_keys_ = false;
    const auto & queries = flat_.queries();
    for (uint32_t i = n - std::min(n, queries.n()); i < n; ++i) {
        lags_[queries.first() + (static_cast<uint32_t>(p0) + i) % queries.n()] = queries.lag();
    }
    if (probing_) {
        n_probe_ = 0;
    } else {
        oldest_ = std::max(oldest_, p0 + static_cast<int32_t>(n) - static_cast<int32_t>(n_ring_));
    }
}

void QueryWindow::end_probe(int32_t p0, std::vector<uint32_t> && part_ends) {
    probe_first_ = p0;
    n_probe_     = part_ends.back();
    part_ends_   = std::move(part_ends);
    has_probe_keys_ = true;
}

uint32_t QueryWindow::n_text(int32_t n_past) const {
    const int32_t first = std::max({ 0, oldest_, n_past - static_cast<int32_t>(n_rows_) });
    return first < n_past ? static_cast<uint32_t>(n_past - first) : 0;
}

uint32_t QueryWindow::n_droppable(int32_t n_past) const {
    const bool all = n_rows_ == 0 || (oldest_ == 0 && n_past <= static_cast<int32_t>(n_rows_));
    return all ? static_cast<uint32_t>(n_past) : 0;
}

void QueryWindow::forget_probe() {
    has_probe_keys_ = false;
    n_probe_ = 0;
    part_ends_.clear();
}

std::vector<int32_t> QueryWindow::text_lags(int32_t n_past, uint32_t n) const {
    std::vector<int32_t> lags(n);
    for (uint32_t i = 0; i < n; ++i) {
        lags[i] = lags_[(static_cast<uint32_t>(n_past) - n + i) % n_ring_];
    }
    return lags;
}

void QueryWindow::restore_text(int32_t n_past, const std::vector<int32_t> & lags) {
    const auto n = static_cast<uint32_t>(lags.size());
    for (uint32_t i = 0; i < n; ++i) {
        lags_[(static_cast<uint32_t>(n_past) - n + i) % n_ring_] = lags[i];
    }
    oldest_  = n_past - static_cast<int32_t>(n);
    n_probe_ = 0;
}

HostRows QueryWindow::copied(uint32_t index, bool probed, int32_t n_past, const QueryRows & rows, RowCopy & copy) const {
    uint32_t begin = UINT32_MAX;
    uint32_t end   = 0;
    each_row(probed, n_past, rows, 0, [&](uint32_t, uint32_t row, int32_t, int32_t) {
        begin = std::min(begin, row);
        end   = std::max(end, row + 1);
    });
    return HostRows(flat_.queries().rings()[index], begin, end - begin, &copy);
}

float QueryWindow::read(uint32_t index, uint32_t first_head, uint32_t n_head, bool probed, int32_t n_past,
                        const QueryRows & rows, bool by_head, int32_t lag, RopeTurn * turn, float * queries, int32_t * positions,
                        HostRows * copied) const {
    const FlatCache::Layer & layer = flat_.layers()[index];
    const ggml_tensor *      ring  = flat_.queries().rings()[index];
    const size_t             dim   = layer.head_dim_k;
    each_row(probed, n_past, rows, lag, [&](uint32_t w, size_t row, int32_t position, int32_t delta) {
        positions[w] = position;
        for (uint32_t h = 0; h < n_head; ++h) {
            float *      dst  = queries + (by_head ? h * rows.n + w : w * n_head + h) * dim;
            const size_t head = (first_head + h) * dim * sizeof(float);
            if (copied != nullptr) {
                std::memcpy(dst, copied->row_of_tensor(row) + head, dim * sizeof(float));
            } else {
                ggml_backend_tensor_get(ring, dst, row * ring->nb[1] + head, dim * sizeof(float));
            }
            if (turn != nullptr) {
                turn->turn_floats(dst, delta);
            }
        }
    });
    return flat_.attention(layer.il).scale;
}

} // namespace edgekv
