#include "cache/query_window.h"

#include "abi/status.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <utility>

namespace edgekv {

QueryWindow::QueryWindow(FlatCache & flat, const std::vector<uint32_t> & n_head, uint32_t n_rows, uint32_t n_probe_rows) :
    flat_(flat), n_rows_(n_rows), n_probe_rows_(n_probe_rows), lags_(n_rows + n_probe_rows) {
    std::map<ggml_backend_buffer_type_t, ggml_context *> by_type;
    for (size_t i = 0; i < flat.layers().size(); ++i) {
        const FlatCache::Layer & layer    = flat.layers()[i];
        const auto               type     = ggml_backend_buffer_get_type(layer.k->buffer);
        const auto               head_dim = static_cast<uint32_t>(layer.k->ne[0]);
        ggml_context *& context = by_type[type];
        if (context == nullptr) {
            contexts_.reserve(contexts_.size() + 1);
            context = ggml_init({ flat.layers().size() * ggml_tensor_overhead(), nullptr, true });
            contexts_.emplace_back(context);
        }
        ggml_tensor * rows = ggml_new_tensor_2d(context, GGML_TYPE_F32, n_head[i] * head_dim, n_rows + n_probe_rows);
        layers_.push_back({ layer.il, n_head[i], head_dim, rows });
    }
    buffers_.reserve(by_type.size());
    for (const auto & [type, context] : by_type) {
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(context, type);
        if (buffer == nullptr) {
            throw std::bad_alloc();
        }
        buffers_.emplace_back(buffer);
        ggml_backend_buffer_clear(buffer, 0);
    }
    std::unordered_map<uint32_t, ggml_tensor *> by_layer;
    for (const Layer & layer : layers_) {
        by_layer[layer.il] = layer.rows;
        flat.queries.scale.emplace(layer.il, 0.0f); // so that none is added later
    }
    flat.queries.rows = std::move(by_layer);
    use(0, n_rows);
}

QueryWindow::~QueryWindow() {
    use(0, 0);
    flat_.queries.rows.clear();
}

// A graph that was built for other rows is not used again.
void QueryWindow::use(uint32_t first, uint32_t n) {
    flat_.queries.first = first;
    flat_.queries.n     = n;
    flat_.changed();
}

void QueryWindow::clear() {
    oldest_  = 0;
    n_probe_ = 0;
}

void QueryWindow::begin(int32_t lag) {
    flat_.queries.lag = lag;
    flat_.written     = false;
}

// The rows that the newest of n tokens took.
void QueryWindow::note(int32_t p0, uint32_t n) {
    const auto & queries = flat_.queries;
    for (uint32_t i = n - std::min(n, queries.n); i < n; ++i) {
        lags_[queries.first + (static_cast<uint32_t>(p0) + i) % queries.n] = queries.lag;
    }
}

void QueryWindow::begin_text(int32_t lag) {
    if (flat_.queries.first != 0 || flat_.queries.n != n_rows_) {
        use(0, n_rows_);
    }
    begin(lag);
}

void QueryWindow::end_text(int32_t p0, uint32_t n) {
    if (flat_.written && n_rows_ > 0) {
        note(p0, n);
        oldest_ = std::max(oldest_, p0 + static_cast<int32_t>(n) - static_cast<int32_t>(n_rows_));
    }
}

void QueryWindow::begin_probe(int32_t lag) {
    use(n_rows_, n_probe_rows_);
    begin(lag);
}

void QueryWindow::end_probe(int32_t p0, uint32_t n) {
    if (flat_.written) {
        note(p0, n);
        probe_first_ = p0;
        n_probe_     = n;
    }
}

uint32_t QueryWindow::n_text(int32_t n_past) const {
    const int32_t first = std::max({ 0, oldest_, n_past - static_cast<int32_t>(n_rows_) });
    return first < n_past ? static_cast<uint32_t>(n_past - first) : 0;
}

std::vector<int32_t> QueryWindow::text_lags(int32_t n_past, uint32_t n) const {
    std::vector<int32_t> lags(n);
    for (uint32_t i = 0; i < n; ++i) {
        lags[i] = lags_[(static_cast<uint32_t>(n_past) - n + i) % n_rows_];
    }
    return lags;
}

void QueryWindow::restore_text(int32_t n_past, const std::vector<int32_t> & lags) {
    const auto n = static_cast<uint32_t>(lags.size());
    for (uint32_t i = 0; i < n; ++i) {
        lags_[(static_cast<uint32_t>(n_past) - n + i) % n_rows_] = lags[i];
    }
    oldest_  = n_past - static_cast<int32_t>(n);
    n_probe_ = 0;
}

uint64_t QueryWindow::bytes(bool host) const {
    uint64_t sum = 0;
    for (const Layer & layer : layers_) {
        sum += ggml_backend_buffer_is_host(layer.rows->buffer) == host ? ggml_nbytes(layer.rows) : 0;
    }
    return sum;
}

float QueryWindow::read(uint32_t index, uint32_t first_head, uint32_t n_head, bool probed, int32_t n_past, uint32_t n_rows,
                        bool by_head, int32_t lag, RopeTurn * turn, float * queries, int32_t * positions) const {
    const Layer &  layer = layers_[index];
    const size_t   dim   = layer.head_dim;
    const int32_t  end   = probed ? probe_first_ + static_cast<int32_t>(n_probe_) : n_past;
    const uint32_t first = probed ? n_rows_ : 0;
    const uint32_t ring  = probed ? n_probe_rows_ : n_rows_;
    for (uint32_t w = 0; w < n_rows; ++w) {
        const int32_t position = end - static_cast<int32_t>(n_rows - w);
        const size_t  row      = first + static_cast<uint32_t>(position) % ring;
        positions[w]           = position;
        for (uint32_t h = 0; h < n_head; ++h) {
            float * dst = queries + (by_head ? h * n_rows + w : w * n_head + h) * dim;
            ggml_backend_tensor_get(layer.rows, dst, row * layer.rows->nb[1] + (first_head + h) * dim * sizeof(float),
                                    dim * sizeof(float));
            if (turn != nullptr) {
                turn->turn_floats(dst, lags_[row] - lag);
            }
        }
    }
    return flat_.queries.scale.at(layer.il);
}

} // namespace edgekv
