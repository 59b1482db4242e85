#include "rows/flat_graph.h"

#include "hooks/status.h"
#include "kernels/row_types.h"
#include "llama-batch.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace edgekv {

namespace {

constexpr uint32_t visible_step = 256; // a graph is built anew once so many rows were filled, not for every token
constexpr size_t   n_query_nodes = 5;  // that keep_queries adds to a graph, at most

ggml_tensor * input(ggml_context * context, ggml_type type, int64_t n, int64_t rows = 1) {
    ggml_tensor * tensor = ggml_new_tensor_2d(context, type, n, rows);
    ggml_set_input(tensor);
    return tensor;
}

ggml_tensor * contiguous(ggml_context * context, ggml_tensor * tensor) {
    return ggml_is_contiguous(tensor) ? tensor : ggml_cont(context, tensor);
}

// A list that was copied as floats, as what it is: I64.
ggml_tensor * as_integers(ggml_context * context, ggml_tensor * floats) {
    ggml_tensor * list = ggml_view_1d(context, floats, floats->ne[0], 0);

    list->type = GGML_TYPE_I64;
    list->ne[0] /= 2;
    list->nb[0] = sizeof(int64_t);
    return list;
}

// The copy of an input, which is made once: by the device whose tensors come after it.
ggml_tensor * copied(ggml_context * context, ggml_tensor * input, ggml_tensor *& copy) {
    copy = copy != nullptr ? copy : ggml_cont(context, input);
    return copy;
}

} // namespace

FlatGraph::FlatGraph(ggml_context * context, FlatCache & cache, uint32_t n_tokens, bool largest) :
    cache_(cache), notes_(cache.notes()), parts_(cache.batch().of(cache, n_tokens)), n_tokens_(n_tokens), largest_(largest),
    lists_(cache.pools().size()), masks_(cache.pools().size()) {
    notes_.attended.clear();
    if (largest) {
        parts_ = { { &cache, n_tokens, 0 } };
    }
    n_visible_ = std::min<uint32_t>(cache.n_open(), round_up(cache.n_filled() + n_tokens, visible_step));
    max_open_  = cache.max_open();
    if (largest) {
        n_visible_ = cache.n_cells();
        max_open_  = cache.n_cells_max() - cache.n_cells();
    }
    for (const FlatCache::Pool & pool : cache.pools()) {
        const int64_t n = int64_t(n_tokens) * (pool.n_heads + largest); // and room for the queries'
        rows_.push_back(pool.host ? input(context, GGML_TYPE_I64, n) : input(context, GGML_TYPE_F32, 2 * n));
    }
    if (HostAttention::can_attend(cache)) {
        n_visible_ = cache.n_open(); // it looks up how many are filled
    } else {
        // a shorter head's part of it begins later, and may be longer by what a device reads too much
        const bool     even = largest ? max_open_ == 0 : uint64_t(max_open_) * cache.n_heads() == cache.n_before_open();
        const uint32_t n    = max_open_ + n_visible_ + (even ? 0 : device_pad - 1);
        mask_ = input(context, GGML_TYPE_F16, cache.on_device() ? round_up(n, device_pad) : max_open_ + n_visible_, n_tokens);
    }
    if (n_tokens == 1) {
        strided_.emplace(context, cache, n_visible_, largest);
    }
    uint32_t n_in_parts = 0;
    for (const BatchPart & part : parts_) {
        const uint32_t n = std::min(part.n_tokens, part.slot->queries().n());
        slots_.push_back({ part.slot->version(), n > 0 ? input(context, GGML_TYPE_I64, n) : nullptr });
        n_in_parts += part.n_tokens;
    }
    if (n_in_parts != n_tokens) {
        throw std::runtime_error("a batch is decoded in other pieces than edgekv fed it in");
    }
}

bool FlatGraph::can_reuse(uint32_t n_tokens) const {
    const std::vector<BatchPart> coming = cache_.batch().of(cache_, n_tokens);
    if (largest_ || n_tokens_ != n_tokens || parts_.size() != coming.size()) {
        return false;
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
        const BatchPart & part = coming[i];
        if (part.slot != parts_[i].slot || part.n_tokens != parts_[i].n_tokens || part.slot->version() != slots_[i].version) {
            return false;
        }
    }
    return mask_ == nullptr || cache_.n_filled() + n_tokens <= n_visible_; // without one, it looks up how many are filled
}

void FlatGraph::set_input(const llama_ubatch & ubatch) const {
    if (cache_.layers().empty()) {
        return; // the inputs are in no graph
    }
    if (const int32_t il = cache_.unattended(); il >= 0) { // before anything is computed with other rows than the layer's
        fail(EDGEKV_STATUS_UNSUPPORTED, "llama.cpp's graph of this model does not attend with layer %d in a way that edgekv knows; choose "
             "another model", il);
    }
    notes_.written = true;
    for (const auto & layer : cache_.layers()) {
        auto * rows = static_cast<int64_t *>(rows_[layer.pool]->data) + size_t(layer.first_of_pool) * n_tokens_;
        for (const BatchPart & part : parts_) {
            for (uint32_t t = 0; t < part.n_tokens; ++t) {
                for (size_t g = 0; g < layer.n_head_kv; ++g) {
                    const FlatCache::Head & head = part.slot->head(layer.first_head + g);
                    *rows++ = head.first + head.open() + part.slot->n_filled() + t;
                }
            }
        }
    }
    if (strided_) {
        strided_->set_input();
    }
    const ggml_fp16_t hidden  = ggml_fp32_to_fp16(-INFINITY);
    const bool        is_read = mask_ != nullptr && mask_->data != nullptr; // by a node
    for (uint32_t t = 0; is_read && t < n_tokens_; ++t) {
        auto *     row   = reinterpret_cast<ggml_fp16_t *>(static_cast<char *>(mask_->data) + t * mask_->nb[1]);
        const auto n_see = max_open_ + cache_.n_filled() + t + 1;
        std::fill_n(row, n_see, ggml_fp16_t(0));
        std::fill(row + n_see, row + mask_->ne[0], hidden);
    }
    const llama_pos * end = ubatch.pos; // of the positions of a part
    for (size_t p = 0; p < parts_.size(); ++p) {
        const ggml_tensor * query_rows = slots_[p].query_rows;
        const auto &        queries    = parts_[p].slot->queries();
        const auto          n          = query_rows != nullptr ? query_rows->ne[0] : 0;
        end += parts_[p].n_tokens;
        for (int64_t i = 0; i < n; ++i) {
            static_cast<int64_t *>(query_rows->data)[i] = queries.first() + (end[i - n] + queries.lag()) % queries.n();
        }
    }
}

std::vector<FlatGraph::Run> FlatGraph::runs_of(const FlatCache::Layer & layer) const {
    const bool alone = largest_ && max_open_ > 0; // there every head may be unlike the others

    std::vector<Run> runs;
    FlatCache::Head  before = {};
    for (size_t g = 0; g < layer.n_head_kv; ++g) {
        const FlatCache::Head head = largest_ ? FlatCache::Head{ 0, 0, max_open_, 0 } : cache_.head(layer.first_head + g);
        if (runs.empty() || alone || !head.is_like(before)) {
            runs.push_back({ g, g, head.first, head.open() });
        }
        runs.back().end = g + 1;
        before          = head;
    }
    return runs;
}

// Rows that attention reads of each head of a run.
uint32_t FlatGraph::n_read(const FlatCache::Layer & layer, const Run & run) const {
    return static_cast<uint32_t>(round_up(run.open + n_visible_, pool_of(layer).host ? 1 : device_pad));
}

// They, (dim, rows, heads).
ggml_tensor * FlatGraph::rows_of(ggml_context * context, ggml_tensor * rows, const FlatCache::Layer & layer, const Run & run) const {
    const size_t n_apart = largest_ ? run.open + n_visible_ : cache_.n_apart(cache_.head(layer.first_head + run.begin), pool_of(layer));
    return ggml_view_3d(context, rows, rows->ne[0], n_read(layer, run), run.end - run.begin, rows->nb[1], rows->nb[1] * n_apart,
                        rows->nb[1] * run.first);
}

// The part of the mask that is theirs, (rows, n_tokens). The host's kernels read it where it is. Those of devices read runs of 16
// bytes, and some take its length for its stride, so there it is a copy.
ggml_tensor * FlatGraph::mask_of(ggml_context * context, const FlatCache::Layer & layer, const Run & run) {
    const bool   host   = pool_of(layer).host;
    const size_t n_rows = n_read(layer, run);
    const bool   whole  = run.open == max_open_ && mask_->ne[0] == int64_t(n_rows);
    if (whole && !(largest_ && (host || max_open_ > 0))) { // the largest graph has all the nodes that any may have
        return mask_;
    }
    ggml_tensor * all  = host ? mask_ : copied(context, mask_, masks_[layer.pool]);
    ggml_tensor * part = ggml_view_2d(context, all, n_rows, n_tokens_, all->nb[1], (max_open_ - run.open) * all->nb[0]);
    return host ? part : ggml_cont(context, part);
}

ggml_tensor * FlatGraph::attend_run(ggml_context * context, ggml_tensor * q, ggml_tensor * sinks, const FlatCache::Layer & layer,
                                const Run & run, float scale, float softcap) {
    const size_t n_group = q->ne[1] / layer.n_head_kv;
    q = ggml_view_3d(context, q, q->ne[0], q->ne[2], (run.end - run.begin) * n_group, q->nb[2], q->nb[1],
                     run.begin * n_group * q->nb[1]);
    ggml_tensor * k = rows_of(context, layer.k, layer, run);
    ggml_tensor * v = layer.is_latent() ? nullptr : rows_of(context, layer.v, layer, run);
    if (layer.is_latent()) {
        v = ggml_view_3d(context, k, layer.head_dim_v, k->ne[1], k->ne[2], k->nb[1], k->nb[2], 0);
    }
    ggml_tensor * out = ggml_flash_attn_ext(context, q, k, v, mask_, scale, 0.0f, softcap);
    ggml_prec_set_acc(out, GGML_PREC_F32);
    if (sinks != nullptr) {
        const size_t n_heads = (run.end - run.begin) * n_group;
        ggml_flash_attn_ext_add_sinks(out, ggml_view_1d(context, sinks, n_heads, run.begin * n_group * sinks->nb[0]));
    }
    out->src[3] = mask_of(context, layer, run); // the call above wants a contiguous one
    return ggml_reshape_2d(context, out, out->ne[0] * out->ne[1], n_tokens_);
}

// All heads of a layer at once: (head_dim_v * n_head, 1).
ggml_tensor * FlatGraph::attend_strided(ggml_context * context, ggml_tensor * q, const FlatCache::Layer & layer, float scale, float softcap) {
    const int64_t n_group = q->ne[1] / layer.n_head_kv;
    q = ggml_view_4d(context, q, q->ne[0], 1, n_group, layer.n_head_kv, q->nb[2], q->nb[1], q->nb[1] * n_group, 0);
    ggml_tensor * k   = strided_->rows_of(context, layer.k, layer);
    ggml_tensor * v   = strided_->rows_of(context, layer.v, layer);
    ggml_tensor * out = ggml_flash_attn_ext(context, q, k, v, strided_->mask_of(context, layer), scale, 0.0f, softcap);
    ggml_prec_set_acc(out, GGML_PREC_F32);
    return ggml_reshape_2d(context, out, layer.head_dim_v * n_group * layer.n_head_kv, 1);
}

void FlatGraph::keep_queries(ggml_context * context, ggml_cgraph * graph, ggml_tensor * q, uint32_t il) {
    const FlatCache::Layer & layer  = cache_.layer(il);
    const auto &             all    = layer.readers;
    const auto               reader = std::find_if(all.begin(), all.end(), [&](const auto & it) { return it.il == il; });
    const size_t             head   = q->ne[0] * sizeof(float);
    const int64_t            n      = q->ne[0] * reader->n_group;
    int64_t                  end    = 0; // of the tokens of a part
    for (size_t p = 0; p < parts_.size(); ++p) {
        ggml_tensor * query_rows = slots_[p].query_rows;
        end += parts_[p].n_tokens;
        if (query_rows == nullptr) {
            continue;
        }
        const int64_t n_rows = query_rows->ne[0];
        ggml_tensor * newest = ggml_view_3d(context, q, q->ne[0], q->ne[1], n_rows, q->nb[1], q->nb[2], (end - n_rows) * q->nb[2]);
        newest               = contiguous(context, newest);

        // the heads of one KV head after another, (values, rows, n_head_kv), to their place between those of the other readers
        ggml_tensor * ring    = parts_[p].slot->query_ring(il);
        ggml_tensor * queries = ggml_view_3d(context, newest, n, n_rows, layer.n_head_kv, newest->nb[2], n * sizeof(float), 0);
        ggml_tensor * place   = ggml_view_3d(context, ring, n, ring->ne[1], layer.n_head_kv, ring->nb[1], layer.n_group * head,
                                             reader->first * head);
        ggml_build_forward_expand(graph, ggml_set_rows(context, place, queries, query_rows));
    }
}

// Where a layer's keys and values go.
ggml_tensor * FlatGraph::places_of(ggml_context * context, const FlatCache::Layer & layer) {
    ggml_tensor *& list = lists_[layer.pool];
    if (list == nullptr && !pool_of(layer).host) {
        list = as_integers(context, ggml_cont(context, rows_[layer.pool]));
    }
    ggml_tensor * all = list != nullptr ? list : rows_[layer.pool];
    return ggml_view_1d(context, all, int64_t(layer.n_head_kv) * n_tokens_, size_t(layer.first_of_pool) * n_tokens_ * all->nb[0]);
}

void FlatGraph::store(ggml_context * context, ggml_cgraph * graph, ggml_tensor * pool, ggml_tensor * rows, ggml_tensor * places) {
    if (ggml_nelements(rows) != pool->ne[0] * places->ne[0]) {
        throw std::runtime_error("keys or values are of other sizes than the model's metadata says");
    }
    rows = ggml_reshape_2d(context, contiguous(context, rows), pool->ne[0], places->ne[0]);
    ggml_build_forward_expand(graph, ggml_set_rows(context, pool, rows, places));
}

ggml_tensor * FlatGraph::attend(ggml_context * context, ggml_cgraph * graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                ggml_tensor * sinks, uint32_t il, float scale, float softcap) {
    const FlatCache::Layer & layer = cache_.layer(il);
    notes_.attended.resize(std::max<size_t>(notes_.attended.size(), il + 1));
    notes_.attended[il] = 1;
    keep_queries(context, graph, q, il);
    if (k != nullptr) {
        notes_.attention[il] = { rope_of(k), scale, rotation_of(k), rotation_of(v) };
        ggml_tensor * places = places_of(context, layer);
        store(context, graph, layer.k, k, places);
        if (!layer.is_latent()) {
            store(context, graph, layer.v, v, places);
        }
    } else if (scale != cache_.attention(layer.il).scale) { // all that read a row score it with one scale
        throw std::runtime_error("layers that share rows scale their scores differently");
    }

    if (mask_ == nullptr) {
        ggml_tensor * out = on_host_.emplace_back(parts_, il, scale, softcap).operation(context, q, sinks);
        ggml_build_forward_expand(graph, out);
        for (size_t i = 0; largest_ && i < n_query_nodes * cache_.n_slots(); ++i) { // ggml's scheduler holds its nodes in arrays, which must not grow later
            ggml_build_forward_expand(graph, ggml_view_1d(context, layer.k, layer.k->ne[0], 0)); // of what is kept anyway
        }
        return out;
    }
    if (strided_ && strided_->has(layer) && sinks == nullptr && !layer.is_latent()) { // sinks would be those of one KV head for all
        ggml_tensor * out = attend_strided(context, q, layer, scale, softcap);
        ggml_build_forward_expand(graph, out);
        if (!largest_) {
            return out;
        }
    }
    const int64_t n_all = layer.head_dim_v * q->ne[1];
    ggml_tensor * out   = nullptr;
    for (const Run & run : runs_of(layer)) {
        ggml_tensor * part = attend_run(context, q, sinks, layer, run, scale, softcap);
        if (out != nullptr) {
            const size_t begin = run.begin * (n_all / layer.n_head_kv) * sizeof(float);
            out                = ggml_set_2d_inplace(context, out, part, out->nb[1], begin);
        } else if (part->ne[0] < n_all) {
            out = ggml_pad(context, part, n_all - part->ne[0], 0, 0, 0); // the others' room, memory of this layer alone
        } else {
            out = part;
        }
        ggml_build_forward_expand(graph, out);
    }
    return out;
}

ggml_tensor * FlatGraph::attend_window(ggml_context * context, ggml_cgraph * graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                       ggml_tensor * mask, ggml_tensor * sinks, float scale, float softcap) {
    if (!WindowAttention::can_attend(*k, *v, *mask)) {
        return nullptr;
    }
    ggml_tensor * out = windows_.emplace_back(scale, softcap).operation(context, q, k, v, mask, sinks);
    ggml_build_forward_expand(graph, out);
    return out;
}

ggml_tensor * FlatGraph::attend_latents(ggml_context * context, ggml_cgraph * graph, ggml_tensor * q, ggml_tensor * k,
                                        ggml_tensor * w_v, ggml_tensor * sinks, uint32_t il, float scale) {
    ggml_tensor * read = attend(context, graph, q, k, k, sinks, il, scale, 0.0f);
    read               = ggml_reshape_3d(context, read, w_v->ne[0], q->ne[1], n_tokens_);
    ggml_tensor * out  = ggml_mul_mat(context, w_v, ggml_permute(context, read, 0, 2, 1, 3)); // a head at a time
    out                = ggml_cont(context, ggml_permute(context, out, 0, 2, 1, 3));
    return ggml_reshape_2d(context, out, out->ne[0] * out->ne[1], n_tokens_);
}

} // namespace edgekv
