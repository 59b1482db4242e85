// The norm1(V W_O) of new values, which cells carry.
#include "evict/compaction.h"
#include "score/wo_norm.h"

#include <algorithm>

using namespace edgekv;

// Call f(i, cell) for the newest cells of a head, i from 0, without the first newest of all; there may be fewer than n.
template <typename F> void Compaction::each_new(const HeadView & head, size_t first, size_t n, F f) {
    for (size_t i = 0; i < n && first + i < head.n; ++i) {
        f(i, head.order[head.n - 1 - first - i]);
    }
}

// The newest tokens are the last of every head's order; where some are gone, older ones are done again.
void Compaction::update_wo_norms(uint32_t il, Scratch & scratch) {
    const size_t n_new = cache_.n_past - cache_.normed_;
    uint32_t     most  = 0;
    for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
        most = std::max(most, cache_.cells(il, g).n);
    }
    const size_t n = std::min<size_t>(n_new, most);
    for (size_t first = norms_by_graphs(il, n, scratch); first < n; first += WoNorm::n_at_once) {
        norms_by_host(il, first, std::min(WoNorm::n_at_once, n_new - first), scratch);
    }
}

// Those of the n newest values, by the backend that holds them: how many it did, the newest first.
size_t Compaction::norms_by_graphs(uint32_t il, size_t n, Scratch & scratch) {
    const edgekv_layer & layer  = layers_[il];
    RowGraphs *          graphs = graphs_of(layer);
    if (graphs == nullptr || layer.is_latent()) {
        return 0;
    }
    const size_t n_room = std::min(graphs->n_listed(), scratch.wo_values.size()) / layer.n_head_kv;
    float *      norms  = scratch.wo_values.data();
    for (size_t first = 0; first < n; first += n_room) {
        const size_t n_now  = std::min(n_room, n - first);
        const auto   listed = [&](auto f) { // f(head, place in the list, cell): a few values of every head, then the next ones
            for (size_t i = 0; i < n_now; i += RowGraphs::n_values) {
                const size_t n_few = std::min(RowGraphs::n_values, n_now - i);
                for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
                    each_new(cache_.cells(il, g), first + i, n_few, [&](size_t j, uint32_t cell) {
                        f(g, i * layer.n_head_kv + g * n_few + j, cell);
                    });
                }
            }
        };
        std::vector<int32_t> rows(n_now * layer.n_head_kv, static_cast<int32_t>(cache_.head_of(il, 0).first)); // of no cell, any row
        listed([&](uint32_t g, size_t place, uint32_t cell) { rows[place] = static_cast<int32_t>(cache_.head_of(il, g).first + cell); });
        if (rows.empty() || !graphs->norms(il, layer.projections, rows, norms)) {
            return first;
        }
        listed([&](uint32_t g, size_t place, uint32_t cell) {
            work(il, g).new_norm[cell] = norms[place] / static_cast<float>(layer.n_group);
        });
    }
    return n;
}

void Compaction::norms_by_host(uint32_t il, size_t first, size_t n, Scratch & scratch) {
    const edgekv_layer & layer = layers_[il];
    WoNorm norm(layer.is_latent() ? cache_.shape.latent_dim_v : layer.head_dim_v, layer.n_head_kv, layer.n_group, scratch,
                layer.is_latent());
    norm.begin();
    for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
        const HeadView head = cache_.cells(il, g);
        uint32_t        low  = head.n;
        uint32_t        high = 0;
        each_new(head, first, n, [&](size_t, uint32_t cell) {
            low  = std::min(low, cell);
            high = std::max(high, cell + 1);
        });
        const uint32_t n_between = high - std::min(low, high); // only what lies between them may be copied
        HostRows       v         = host_rows(layer, true, cache_.head_of(il, g).first + low, n_between);
        const Rows     values    = rows_of_head(il, true, v, n_between);
        each_new(head, first, n, [&](size_t i, uint32_t cell) { norm.put(g, i, values, cell - low); });
    }
    if (layer.is_latent()) {
        layer.w_v.each_slice(WoNorm::n_slice, scratch.wo_bytes, [&](size_t at, const Rows & rows) { norm.decompress(rows, at, n); });
    }
    for (size_t reader = 0; reader < layer.readers.size(); ++reader) {
        layer.projections[reader].each_slice(WoNorm::n_slice, scratch.wo_bytes, [&](size_t, const Rows & rows) {
            norm.add(rows, 0, layer.readers[reader].n_group, n);
        });
    }
    for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
        float norms[WoNorm::n_at_once];
        norm.take(g, n, norms);
        float * new_norm = work(il, g).new_norm;
        each_new(cache_.cells(il, g), first, n, [&](size_t i, uint32_t cell) { new_norm[cell] = norms[i]; });
    }
}
