// Where rows lie, for one compaction: on devices, in the host's memory, or in a copy there.
#include "evict/devices.h"

#include <algorithm>

namespace edgekv {

Devices::Devices(const edgekv_cache & cache, const edgekv_policy & policy, const Traits & traits, bool probed) :
    cache_(cache), layers_(cache.layers_), flat_(cache.flat_), work_(cache.workspace()), policy_(policy), traits_(traits), probed_(probed),
    scored_(flat_.pools().size()), valued_(flat_.pools().size()), normed_(flat_.pools().size()), staged_(layers_.size()) {}

void Devices::begin() {
    work_.copy_k.n_bytes = work_.copy_v.n_bytes = work_.copy_queries.n_bytes = 0;
    for (const auto & graphs : work_.graphs) {
        if (graphs) {
            graphs->crossed_bytes = 0;
        }
    }
}

HostRows Devices::rows(uint32_t il, uint32_t g, bool values, size_t n) { return rows(layers_[il], values, cache_.head_of(il, g).first, n); }

HostRows Devices::rows(const edgekv_layer & layer, bool values, size_t first, size_t n) {
    if (copies(layer) && n > 0) {
        staged_[&layer - layers_.data()] = 1;
    }
    return cache_.host_rows(layer, values, first, n);
}

HostRows * Devices::queries(uint32_t il, const QueryRows & rows) {
    if (!copies(layers_[il])) {
        return nullptr;
    }
    if (!queries_ || queries_layer_ != il) {
        queries_.emplace(cache_.window_->copied(il, probed_, cache_.n_past, rows, work_.copy_queries));
        queries_layer_ = il;
    }
    return &*queries_;
}

uint64_t Devices::crossed_bytes() const {
    uint64_t sum = work_.copy_k.n_bytes + work_.copy_v.n_bytes + work_.copy_queries.n_bytes;
    for (const auto & graphs : work_.graphs) {
        sum += graphs ? graphs->crossed_bytes : 0;
    }
    return sum;
}

uint32_t Devices::n_staged() const { return static_cast<uint32_t>(std::count(staged_.begin(), staged_.end(), 1)); }

} // namespace edgekv
