#include "rows/host_attention.h"

#include "kernels/kernels.h"
#include "kernels/row_types.h"
#include "rows/rows.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

namespace {

// A thread's memory lies on its stack: a tile of keys and one of values, the queries of a pass and their sums.
constexpr size_t n_floats     = 10240;
constexpr size_t most_queries = 32; // that are rows
constexpr size_t most_panels  = 8;
constexpr size_t most_cells   = 64;
constexpr size_t max_row      = n_floats / n_lanes; // a tile is no fewer than n_lanes cells

// From so many tokens on, queries are lanes of panels. Fewer would leave lanes empty, and a draft's tokens round as single ones do.
constexpr size_t fewest_tokens = 8;

size_t padded(size_t dim) { return round_up(dim, n_lanes); }

// How much one thread does at once, of a layer. Sums do not depend on the number of threads, so this does not either.
struct Tile {
    size_t dim_k; // of rows here
    size_t dim_v;
    size_t n_cells;
    size_t n_queries;
    bool   has_panels; // queries are the lanes of panels, not rows

    Tile(const FlatCache::Layer & layer, size_t n_tokens) :
        dim_k(padded(layer.head_dim_k)), dim_v(padded(layer.head_dim_v)), has_panels(n_tokens >= fewest_tokens) {
        const size_t dim = std::max(dim_k, dim_v);
        n_cells          = std::min(most_cells, n_floats / dim / n_lanes * n_lanes);
        n_queries        = has_panels ? std::min(most_panels, n_floats / dim / n_lanes) * n_lanes : std::min(most_queries, n_floats / dim);
    }
};

// What one thread does of an operation, for one part of the batch.
class Pass {
  public:
    Pass(const HostAttention & op, const ggml_tensor & out, const FlatCache::Part & part, size_t first_token) :
        op_(op), out_(out), q_(*out.src[0]), sinks_(out.src[3]), part_(part), first_token_(first_token), layer_(part.slot->layer(op.il)),
        tile_(layer_, n_tokens()), read_k_(row_to_float(layer_.k->type)), read_v_(row_to_float(layer_.v->type)) {}

    // Of a KV head, counted by query head, then token.
    size_t n_queries() const { return n_group() * n_tokens(); }

    // Cells of a head that each of them reads, about.
    size_t n_cells(size_t g) const { return head(g).kept + part_.slot->n_filled() + n_tokens(); }

    // Queries that only one thread may take.
    size_t step() const { return tile_.has_panels ? n_lanes : 1; }

    // Queries [first, last) of a KV head.
    void attend(size_t g, size_t first, size_t last) {
        for (; first < last; first += tile_.n_queries) {
            attend_at_once(g, first, std::min(tile_.n_queries, last - first));
        }
    }

  private:
    size_t n_tokens() const { return part_.n_tokens; }
    size_t n_group() const { return q_.ne[1] / layer_.n_head_kv; }

    const FlatCache::Head & head(size_t g) const { return part_.slot->head(layer_.first_head + g); }

    void attend_at_once(size_t g, size_t first, size_t n) {
        const FlatCache::Head & head      = this->head(g);
        size_t                  most_seen = 0;
        for (size_t i = 0; i < n; ++i) {
            const size_t h = g * n_group() + (first + i) / n_tokens(), t = (first + i) % n_tokens();
            put_query(i, at<const float>(q_, h * q_.nb[1] + (first_token_ + t) * q_.nb[2]));
            seen_[i]  = head.kept + part_.slot->n_filled() + t + 1;
            most_seen = std::max(most_seen, seen_[i]);
            most_[i]  = sinks_ != nullptr ? *at<const float>(*sinks_, h * sinks_->nb[0]) : -INFINITY;
            sums_[i]  = sinks_ != nullptr ? 1.0f : 0.0f;
        }
        const size_t n_padded = round_up(n, step());
        for (size_t i = n; i < n_padded; ++i) { // lanes of no query
            put_query(i, nullptr);
            seen_[i] = 0;
            most_[i] = -INFINITY;
            sums_[i] = 0.0f;
        }
        std::fill_n(out_rows_, n_padded * tile_.dim_v, 0.0f);
        for (size_t cell = 0; cell < most_seen; cell += tile_.n_cells) {
            attend_to(head.first + cell, cell, std::min(tile_.n_cells, most_seen - cell), n);
        }
        for (size_t i = 0; i < n; ++i) {
            const size_t h = g * n_group() + (first + i) / n_tokens(), t = (first + i) % n_tokens();
            put_out(i, at<float>(out_, (first_token_ + t) * out_.nb[1]) + h * layer_.head_dim_v);
        }
    }

    // Where query i begins, or its sums; step() lies from one element to the next.
    size_t place(size_t i, size_t dim) const { return tile_.has_panels ? i / n_lanes * n_lanes * dim + i % n_lanes : i * dim; }

    void put_query(size_t i, const float * query) {
        float * dst = queries_ + place(i, tile_.dim_k);
        for (size_t k = 0; k < tile_.dim_k; ++k) {
            dst[k * step()] = query != nullptr && k < layer_.head_dim_k ? op_.scale * query[k] : 0.0f;
        }
    }

    void put_out(size_t i, float * dst) const {
        const float * src = out_rows_ + place(i, tile_.dim_v);
        for (size_t k = 0; k < layer_.head_dim_v; ++k) {
            dst[k] = src[k * step()] / sums_[i];
        }
    }

    // Bring n queries up to date with n_read rows from `row` on, which are the head's cells from `cell` on.
    void attend_to(size_t row, size_t cell, size_t n_read, size_t n) {
        read(*layer_.k, read_k_, row, n_read, tile_.dim_k, keys_);
        if (!layer_.is_latent()) {
            read(*layer_.v, read_v_, row, n_read, tile_.dim_v, values_);
        }
        std::fill(keys_ + n_read * tile_.dim_k, keys_ + padded(n_read) * tile_.dim_k, 0.0f); // is read too, and seen by none
        for (size_t i = 0; i < round_up(n, step()); ++i) {
            n_seen_[i] = static_cast<int32_t>(std::min(n_read, seen_[i] - std::min(seen_[i], cell)));
        }
        const float * values = layer_.is_latent() ? keys_ : values_; // a latent is the first part of its key
        const size_t  stride = layer_.is_latent() ? tile_.dim_k : tile_.dim_v;
        if (!tile_.has_panels) {
            kernels().attend({ n, n_read, tile_.dim_k, tile_.dim_v, queries_, keys_, values, stride, n_seen_, op_.softcap, logits_, most_, sums_,
                               out_rows_ });
            return;
        }
        for (size_t i = 0; i < n; i += n_lanes) {
            const auto n_seen = static_cast<size_t>(*std::max_element(n_seen_ + i, n_seen_ + i + n_lanes));
            if (n_seen > 0) {
                kernels().attend_panel({ n_seen, tile_.dim_k, tile_.dim_v, queries_ + i * tile_.dim_k, keys_, values, stride, n_seen_ + i,
                                         op_.softcap, logits_, most_ + i, sums_ + i, out_rows_ + i * tile_.dim_v });
            }
        }
    }

    template <typename T> static T * at(const ggml_tensor & tensor, size_t offset) {
        return reinterpret_cast<T *>(static_cast<char *>(tensor.data) + offset);
    }

    // Rows [first, first + n) of a pool, each filled up with zeros to `stride` floats.
    static void read(const ggml_tensor & pool, ggml_to_float_t convert, size_t first, size_t n, size_t stride, float * dst) {
        const size_t dim = pool.ne[0];
        const auto * src = at<const char>(pool, first * pool.nb[1]);
        if (dim == stride) {
            convert(src, dst, static_cast<int64_t>(n * dim));
            return;
        }
        for (size_t i = 0; i < n; ++i) {
            convert(src + i * pool.nb[1], dst + i * stride, static_cast<int64_t>(dim));
            std::fill(dst + i * stride + dim, dst + (i + 1) * stride, 0.0f);
        }
    }

    const HostAttention &    op_;
    const ggml_tensor &      out_;
    const ggml_tensor &      q_;
    const ggml_tensor *      sinks_;
    const FlatCache::Part &  part_;
    const size_t             first_token_;
    const FlatCache::Layer & layer_;
    const Tile               tile_;
    ggml_to_float_t          read_k_;
    ggml_to_float_t          read_v_;

    static constexpr size_t most_at_once = std::max(most_queries, most_panels * n_lanes);

    float   keys_[n_floats];
    float   values_[n_floats];
    float   queries_[n_floats];
    float   out_rows_[n_floats];
    float   logits_[most_queries * most_cells]; // a panel's are no more
    float   most_[most_at_once];
    float   sums_[most_at_once];
    size_t  seen_[most_at_once];
    int32_t n_seen_[most_at_once];
};

// Call f(pass) for every part of the batch.
template <typename F> void each_pass(const HostAttention & op, const ggml_tensor & out, F f) {
    size_t first_token = 0;
    for (const FlatCache::Part & part : op.parts) {
        Pass pass(op, out, part, first_token);
        f(pass);
        first_token += part.n_tokens;
    }
}

// What ggml calls on each thread. Threads share the cells out: one may begin and end within a head.
void run(ggml_tensor * out, int i_thread, int n_threads, void * userdata) {
    const auto & op        = *static_cast<const HostAttention *>(userdata);
    const size_t n_head_kv = op.parts.front().slot->layer(op.il).n_head_kv;

    size_t n_all = 0;
    each_pass(op, *out, [&](const Pass & pass) {
        for (size_t g = 0; g < n_head_kv; ++g) {
            n_all += pass.n_queries() * pass.n_cells(g);
        }
    });
    const size_t begin = n_all * i_thread / n_threads;
    const size_t end   = n_all * (i_thread + 1) / n_threads;

    size_t before = 0;
    each_pass(op, *out, [&](Pass & pass) {
        for (size_t g = 0; g < n_head_kv; ++g) {
            const size_t n         = pass.n_cells(g);
            const auto   n_started = [&](size_t bound) { // queries whose cells begin before it
                return bound <= before ? 0 : std::min(pass.n_queries(), round_up((bound - before + n - 1) / n, pass.step()));
            };
            pass.attend(g, n_started(begin), n_started(end));
            before += pass.n_queries() * n;
        }
    });
}

} // namespace

bool HostAttention::can_attend(const FlatCache & cache) {
    const auto fits = [](const FlatCache::Layer & layer) {
        return padded(layer.head_dim_k) <= max_row && padded(layer.head_dim_v) <= max_row;
    };
    return !cache.on_device() && std::all_of(cache.layers().begin(), cache.layers().end(), fits);
}

size_t HostAttention::stack_bytes(const FlatCache & cache) {
    size_t most = 0;
    for (const FlatCache::Layer & layer : cache.layers()) {
        for (const size_t n_tokens : { size_t(1), fewest_tokens }) {
            const Tile tile(layer, n_tokens);
            most = std::max(most, (tile.n_cells + tile.n_queries) * (tile.dim_k + tile.dim_v)); // rows of both, queries and their sums
        }
    }
    return can_attend(cache) ? (most + most_queries * most_cells) * sizeof(float) : 0;
}

ggml_tensor * HostAttention::operation(ggml_context * context, ggml_tensor * q, ggml_tensor * sinks) {
    const FlatCache::Layer & layer  = parts.front().slot->layer(il);
    ggml_tensor *            args[] = { q, layer.k, layer.v, sinks };
    return ggml_custom_4d(context, GGML_TYPE_F32, layer.head_dim_v * q->ne[1], q->ne[2], 1, 1, args, sinks != nullptr ? 4 : 3, run,
                          GGML_N_TASKS_MAX, this);
}

} // namespace edgekv
