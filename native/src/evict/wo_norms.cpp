// The norm1(V W_O) of new values, which cells carry.
#include "evict/compaction.h"
#include "score/wo_norm.h"

#include <algorithm>

using namespace edgekv;

// The newest tokens are the last of every head's order; where some are gone, older ones are done again.
void Compaction::update_wo_norms(uint32_t il, Scratch & scratch) {
    if (devices_.has_normed(layers_[il].pool)) {
        return;
    }
    const size_t n_new = cache_.n_past - cache_.normed_;
    uint32_t     most  = 0;
    for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
        most = std::max(most, cache_.cells(il, g).n);
    }
    const size_t n = std::min<size_t>(n_new, most);
    for (size_t first = 0; first < n; first += WoNorm::n_at_once) {
        norms_by_host(il, first, std::min(WoNorm::n_at_once, n_new - first), scratch);
    }
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
        HostRows       v         = devices_.rows(layer, true, cache_.head_of(il, g).first + low, n_between);
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
        float * new_norm = cache_.work(il, g).new_norm;
        each_new(cache_.cells(il, g), first, n, [&](size_t i, uint32_t cell) { new_norm[cell] = norms[i]; });
    }
}
