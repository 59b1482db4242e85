#include "rows/attention_pass.h"

#include <cmath>
#include <cstring>

namespace edgekv {

namespace {

size_t padded(size_t dim) { return round_up(dim, n_lanes); }

template <typename T> T * at(const ggml_tensor & tensor, size_t offset) {
    return reinterpret_cast<T *>(static_cast<char *>(tensor.data) + offset);
}

// The first n cells of a tile.
SeenCells first_cells(size_t n) { return { n < 64 ? (uint64_t(1) << n) - 1 : ~uint64_t(0), n }; }

// Those of n cells that a row of a mask shows. Most tiles are seen as a whole or not at all.
SeenCells shown_cells(const ggml_fp16_t * mask, size_t n) {
    constexpr size_t   n_at_once = sizeof(uint64_t) / sizeof(ggml_fp16_t);
    constexpr uint64_t unseen    = 0xFC00FC00FC00FC00; // -inf

    uint64_t any = 0, every = ~uint64_t(0);
    for (size_t c = 0; c + n_at_once <= n; c += n_at_once) {
        uint64_t cells;
        std::memcpy(&cells, mask + c, sizeof(cells));
        any |= cells;
        every &= cells;
    }
    if (n % n_at_once == 0 && (any == 0 || every == unseen)) {
        return first_cells(any == 0 ? n : 0);
    }
    SeenCells seen = {};
    for (size_t c = 0; c < n; ++c) {
        if (mask[c] == 0) {
            seen = { seen.bits | uint64_t(1) << c, c + 1 };
        }
    }
    return seen;
}

// Write n rows to dst, each filled up with zeros to n_floats.
void read_rows(const RowFormat & stored, ggml_to_float_t convert, const char * rows, size_t n, size_t n_floats, float * dst) {
    const auto dim = static_cast<int64_t>(stored.dim);
    if (stored.dim == n_floats && stored.stride == ggml_row_size(stored.type, dim)) {
        convert(rows, dst, static_cast<int64_t>(n) * dim);
        return;
    }
    for (size_t i = 0; i < n; ++i) {
        convert(rows + i * stored.stride, dst + i * n_floats, dim);
        std::fill(dst + i * n_floats + dim, dst + (i + 1) * n_floats, 0.0f);
    }
}

} // namespace

AttentionPass::Tile::Tile(size_t head_dim_k, size_t head_dim_v, size_t n_tokens) :
    dim_k(padded(head_dim_k)), dim_v(padded(head_dim_v)), has_panels(n_tokens >= fewest_tokens) {
    const size_t dim = std::max(dim_k, dim_v);
    n_cells          = std::min(most_cells, n_floats / dim / n_lanes * n_lanes);
    n_queries        = has_panels ? std::min(most_panels, n_floats / dim / n_lanes) * n_lanes : std::min(most_queries, n_floats / dim);
}

bool AttentionPass::fits(size_t dim_k, size_t dim_v) { return padded(dim_k) <= max_row && padded(dim_v) <= max_row; }

size_t AttentionPass::work_bytes(size_t dim_k, size_t dim_v) {
    const size_t most = std::max(Tile(dim_k, dim_v, 1).size(), Tile(dim_k, dim_v, fewest_tokens).size());
    return round_up(most * sizeof(float), n_aligned);
}

AttentionPass::AttentionPass(const AttentionOperands & of, size_t first_token, size_t n_tokens, void * memory) :
    of_(of), first_token_(first_token), n_tokens_(n_tokens), n_group_(of.queries->ne[1] / of.n_head_kv), tile_(of.keys.dim, of.values.dim, n_tokens),
    read_k_(row_to_float(of.keys.type)), read_v_(row_to_float(of.values.type)), keys_(static_cast<float *>(memory)),
    values_(keys_ + tile_.n_cells * tile_.dim_k), queries_(values_ + tile_.n_cells * tile_.dim_v),
    out_rows_(queries_ + tile_.n_queries * tile_.dim_k), logits_(out_rows_ + tile_.n_queries * tile_.dim_v),
    hidden_(reinterpret_cast<int32_t *>(logits_ + n_logits)) {}

void AttentionPass::attend_queries(const AttendedHead & cells, size_t g, size_t first, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const size_t h = head_of(g, first + i);
        tokens_[i]     = token_of(first + i);
        put_query(i, at<const float>(*of_.queries, h * of_.queries->nb[1] + tokens_[i] * of_.queries->nb[2]));
        most_[i] = of_.sinks != nullptr ? *at<const float>(*of_.sinks, h * of_.sinks->nb[0]) : -INFINITY;
        sums_[i] = of_.sinks != nullptr ? 1.0f : 0.0f;
    }
    const size_t n_padded = round_up(n, step());
    for (size_t i = n; i < n_padded; ++i) { // lanes of no query
        put_query(i, nullptr);
        most_[i] = -INFINITY;
        sums_[i] = 0.0f;
    }
    std::fill_n(out_rows_, n_padded * tile_.dim_v, 0.0f);
    for (size_t cell = 0; cell < cells.n; cell += tile_.n_cells) {
        add_tile(cells, cell, std::min(tile_.n_cells, cells.n - cell), n);
    }
    for (size_t i = 0; i < n; ++i) {
        put_out(i, at<float>(*of_.out, tokens_[i] * of_.out->nb[1]) + head_of(g, first + i) * of_.values.dim);
    }
}

// Where query i begins, or its sums; step() lies from one element to the next.
size_t AttentionPass::place(size_t i, size_t dim) const {
    return tile_.has_panels ? i / n_lanes * n_lanes * dim + i % n_lanes : i * dim;
}

void AttentionPass::put_query(size_t i, const float * query) {
    float * dst = queries_ + place(i, tile_.dim_k);
    for (size_t k = 0; k < tile_.dim_k; ++k) {
        dst[k * step()] = query != nullptr && k < of_.keys.dim ? of_.scale * query[k] : 0.0f;
    }
}

void AttentionPass::put_out(size_t i, float * dst) const {
    const float * src = out_rows_ + place(i, tile_.dim_v);
    for (size_t k = 0; k < of_.values.dim; ++k) {
        dst[k] = src[k * step()] / sums_[i];
    }
}

// Say which of n_read cells from `cell` on the queries see. Returns what any of them sees.
SeenCells AttentionPass::see(const AttendedHead & cells, size_t cell, size_t n_read, size_t n) {
    SeenCells any = {};
    for (size_t i = 0; i < round_up(n, step()); ++i) {
        SeenCells seen = {};
        if (i < n && of_.mask != nullptr) {
            seen = shown_cells(at<const ggml_fp16_t>(*of_.mask, tokens_[i] * of_.mask->nb[1]) + cell, n_read);
        } else if (i < n) {
            const size_t n_seen = cells.n - n_tokens_ + (tokens_[i] - first_token_) + 1; // of all cells
            seen                = first_cells(std::min(n_read, n_seen - std::min(n_seen, cell)));
        }
        seen_[i]   = seen.bits;
        n_seen_[i] = static_cast<int32_t>(seen.n);
        any        = { any.bits | seen.bits, std::max(any.n, seen.n) };
    }
    return any;
}

// Cells of the first n_cells that queries [i, i + n) do not see; NULL if each sees its first n_seen_.
const int32_t * AttentionPass::hidden(size_t i, size_t n, size_t n_cells, size_t next_query, size_t next_cell) {
    const auto sees_the_first = [](uint64_t bits) { return (bits & (bits + 1)) == 0; };
    if (std::all_of(seen_ + i, seen_ + i + n, sees_the_first)) {
        return nullptr;
    }
    for (size_t q = 0; q < n; ++q) {
        for (size_t c = 0; c < n_cells; ++c) {
            hidden_[q * next_query + c * next_cell] = (seen_[i + q] >> c & 1) == 0;
        }
    }
    return hidden_;
}

// Read a tile. What nobody sees is 0: nothing may have been written there.
void AttentionPass::read(const AttendedHead & cells, size_t cell, size_t n_read, uint64_t wanted) {
    const auto is_wanted = [wanted](size_t c) { return (wanted >> c & 1) != 0; };
    for (size_t c = 0, end = 0; c < n_read; c = end) {
        for (end = c + 1; end < n_read && is_wanted(end) == is_wanted(c);) {
            ++end;
        }
        float *      keys   = keys_ + c * tile_.dim_k;
        float *      values = values_ + c * tile_.dim_v;
        const size_t n      = end - c;
        if (!is_wanted(c)) {
            std::fill_n(keys, n * tile_.dim_k, 0.0f);
            std::fill_n(values, n * tile_.dim_v, 0.0f);
            continue;
        }
        read_rows(of_.keys, read_k_, cells.keys + (cell + c) * of_.keys.stride, n, tile_.dim_k, keys);
        if (!of_.is_latent) {
            read_rows(of_.values, read_v_, cells.values + (cell + c) * of_.values.stride, n, tile_.dim_v, values);
        }
    }
    std::fill(keys_ + n_read * tile_.dim_k, keys_ + padded(n_read) * tile_.dim_k, 0.0f); // is read too, and seen by none
}

// Bring n queries up to date with n_read cells from `cell` on.
void AttentionPass::add_tile(const AttendedHead & cells, size_t cell, size_t n_read, size_t n) {
    const SeenCells seen = see(cells, cell, n_read, n);
    if (seen.n == 0) {
        return;
    }
    n_read = seen.n;
    read(cells, cell, n_read, seen.bits);
    const float * values = of_.is_latent ? keys_ : values_; // a latent is the first part of its key
    const size_t  stride = of_.is_latent ? tile_.dim_k : tile_.dim_v;
    if (!tile_.has_panels) {
        const int32_t * hidden = this->hidden(0, n, n_read, padded(n_read), 1);
        kernels().attend_tile({ n, n_read, tile_.dim_k, tile_.dim_v, queries_, keys_, values, stride, n_seen_, hidden, of_.softcap, logits_, most_, sums_,
                                out_rows_ });
        return;
    }
    for (size_t i = 0; i < n; i += n_lanes) {
        const auto n_seen = static_cast<size_t>(*std::max_element(n_seen_ + i, n_seen_ + i + n_lanes));
        if (n_seen > 0) {
            const int32_t * hidden = this->hidden(i, n_lanes, n_seen, 1, n_lanes);
            kernels().attend_panel({ n_seen, tile_.dim_k, tile_.dim_v, queries_ + i * tile_.dim_k, keys_, values, stride, n_seen_ + i, hidden,
                                     of_.softcap, logits_, most_ + i, sums_ + i, out_rows_ + i * tile_.dim_v });
        }
    }
}

} // namespace edgekv
