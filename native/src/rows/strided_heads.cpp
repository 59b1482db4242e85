#include "rows/strided_heads.h"

#include "kernels/row_types.h"

#include <algorithm>
#include <numeric>

namespace edgekv {

namespace {

constexpr uint32_t alignment = 64;     // numbers; a device reads them from where these begin
constexpr float    hidden    = -1e30f; // in f16 it is -inf

// Longer views would take more time than a call for each head.
uint32_t most_rows(const FlatCache & cache) { return static_cast<uint32_t>(round_up(2 * cache.n_cells(), device_pad)); }

size_t room_of(size_t n_heads) { return round_up(n_heads, alignment); }

} // namespace

template <typename F> void StridedHeads::each_layer(size_t pool, F f) const {
    for (size_t i = 0; i < views_.size(); ++i) {
        if (cache_.layers()[i].pool == pool) {
            f(i, cache_.layers()[i]);
        }
    }
}

StridedHeads::StridedHeads(ggml_context * context, const FlatCache & cache, uint32_t n_visible, bool largest) :
    cache_(cache), n_visible_(n_visible), pools_(cache.pools().size()), views_(cache.layers().size()) {
    for (size_t p = 0; p < pools_.size() && cache.attends_by_head(); ++p) {
        const FlatCache::Pool & pool = cache.pools()[p];
        const uint32_t          most = std::min<uint32_t>(most_rows(cache), pool.k->ne[1]);
        if (pool.host || (!largest && !are_unlike(p))) {
            continue;
        }
        const uint32_t n_rows = largest ? most : lay_views(p);
        if (n_rows <= most) {
            pools_[p].n_rows  = n_rows;
            pools_[p].numbers = ggml_new_tensor_1d(context, GGML_TYPE_F32, n_rows + 2 * room_of(pool.n_heads));
            ggml_set_input(pools_[p].numbers);
        }
    }
}

bool StridedHeads::are_unlike(size_t pool) const {
    bool unlike = false;
    each_layer(pool, [&](size_t, const FlatCache::Layer & layer) {
        const FlatCache::Head & first = cache_.head(layer.first_head);
        for (size_t g = 1; g < layer.n_head_kv; ++g) {
            unlike |= !cache_.head(layer.first_head + g).is_like(first);
        }
    });
    return unlike;
}

// Lay the views of a pool's layers, all within the pool: how many rows each has; UINT32_MAX if they do not fit.
uint32_t StridedHeads::lay_views(size_t pool) {
    const uint32_t step   = cache_.pools()[pool].step;
    const auto     n_rows = static_cast<int64_t>(cache_.pools()[pool].k->ne[1]);
    int64_t        length = 0;
    const auto     heads  = [&](const FlatCache::Layer & layer, auto f) { // f(which one of the layer's, its first row, the one after its last)
        for (int64_t g = 0; g < layer.n_head_kv; ++g) {
            const FlatCache::Head & head = cache_.head(layer.first_head + g);
            f(g, int64_t(head.first), int64_t(head.first) + head.open() + n_visible_);
        }
    };
    each_layer(pool, [&](size_t i, const FlatCache::Layer & layer) {
        const int64_t last  = layer.n_head_kv - 1;
        int64_t       apart = last == 0 ? 0 : (int64_t(cache_.head(layer.first_head + last).first) - cache_.head(layer.first_head).first) / last;
        heads(layer, [&](int64_t g, int64_t begin, int64_t end) { // the first view begins in the pool, and the last one ends there
            apart = g > 0 ? std::min(apart, begin / g) : apart;
            apart = g < last ? std::min(apart, (n_rows - step - end) / (last - g)) : apart;
        });
        apart         = std::max<int64_t>(0, apart) / step * step;
        int64_t first = n_rows;
        int64_t after = 0;
        heads(layer, [&](int64_t g, int64_t begin, int64_t end) {
            first = std::min(first, begin - g * apart);
            after = std::max(after, end - g * apart);
        });
        views_[i] = { static_cast<uint32_t>(first), static_cast<uint32_t>(apart) };
        length    = std::max(length, after - first);
    });
    const auto n    = static_cast<int64_t>(round_up(length + step, device_pad));
    bool       fits = true;
    each_layer(pool, [&](size_t i, const FlatCache::Layer & layer) {
        const int64_t latest = n_rows - n - int64_t(layer.n_head_kv - 1) * views_[i].apart;
        fits &= latest >= 0;
        views_[i].first = static_cast<uint32_t>(std::max<int64_t>(0, std::min<int64_t>(views_[i].first, latest))) / step * step;
    });
    return fits ? static_cast<uint32_t>(n) : UINT32_MAX;
}

void StridedHeads::set_input() const {
    for (size_t p = 0; p < pools_.size(); ++p) {
        const Pool & pool = pools_[p];
        if (pool.numbers == nullptr || pool.numbers->data == nullptr) { // that is in no graph
            continue;
        }
        auto * const rows   = static_cast<float *>(pool.numbers->data);
        auto * const middle = rows + pool.n_rows;
        auto * const half   = middle + room_of(cache_.pools()[p].n_heads);
        std::iota(rows, middle, 0.0f);
        each_layer(p, [&](size_t i, const FlatCache::Layer & layer) {
            for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
                const FlatCache::Head & head  = cache_.head(layer.first_head + g);
                const auto              first = static_cast<float>(head.first - (views_[i].first + g * views_[i].apart));
                half[layer.first_of_pool + g]   = static_cast<float>(head.open() + cache_.n_filled()) / 2; // the token's own row is the last
                middle[layer.first_of_pool + g] = first + half[layer.first_of_pool + g];
            }
        });
    }
}

ggml_tensor * StridedHeads::rows_of(ggml_context * context, ggml_tensor * rows, const FlatCache::Layer & layer) const {
    const Views & views = views_[&layer - cache_.layers().data()];
    const size_t  row   = rows->nb[1];
    ggml_tensor * all   = ggml_view_2d(context, rows, rows->ne[0], pools_[layer.pool].n_rows, row, row * views.first);

    all->ne[3] = layer.n_head_kv; // ggml takes views for as large as if none overlapped another
    all->nb[3] = row * views.apart;
    return all;
}

ggml_tensor * StridedHeads::mask_of(ggml_context * context, const FlatCache::Layer & layer) {
    Pool & pool = pools_[layer.pool];
    if (pool.mask == nullptr) {
        const int64_t n       = pool.n_rows;
        const int64_t n_heads = cache_.pools()[layer.pool].n_heads;
        ggml_tensor * numbers = ggml_cont(context, pool.numbers); // there, where views of it need not be sent
        const auto    of_each = [&](size_t first) {
            constexpr size_t size = sizeof(float);
            return ggml_view_4d(context, numbers, 1, 1, 1, n_heads, size, size, size, first * size);
        };
        ggml_tensor * away = ggml_repeat_4d(context, ggml_view_1d(context, numbers, n, 0), n, 1, 1, n_heads);
        away               = ggml_abs_inplace(context, ggml_sub_inplace(context, away, of_each(n)));
        away               = ggml_sub_inplace(context, away, of_each(n + room_of(n_heads))); // above 0 it is at least 1
        away               = ggml_scale_inplace(context, ggml_clamp_inplace(context, away, 0.0f, 1.0f), hidden);
        pool.mask          = ggml_cast(context, away, GGML_TYPE_F16);
    }
    const size_t row = pool.mask->nb[1];
    return ggml_view_4d(context, pool.mask, pool.n_rows, 1, 1, layer.n_head_kv, row, row, row, layer.first_of_pool * row);
}

uint32_t StridedHeads::n_nodes(const FlatCache & cache) {
    constexpr uint32_t of_mask = 12;
    constexpr uint32_t of_call = 6; // four views, attention, its result
    uint32_t           n       = 0;
    for (const FlatCache::Layer & layer : cache.layers()) {
        n += layer.readers.size() * of_call;
    }
    return cache.on_device() && cache.attends_by_head() ? n + of_mask * static_cast<uint32_t>(cache.pools().size()) : 0;
}

} // namespace edgekv
