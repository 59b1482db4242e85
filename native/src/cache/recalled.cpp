// Cells that an archive gives back: the parts of a cache that a recall reads, and the cells that its tokens get.
#include "cache/cache.h"
#include "hooks/status.h"
#include "llama-kv-cache.h"
#include "rows/host_attention.h"

#include <algorithm>
#include <numeric>
#include <utility>

using namespace edgekv;

edgekv_queries edgekv_cache::probe_queries(uint32_t il, uint32_t g, uint32_t n_rows, float * queries, int32_t * positions,
                                           HostRows * copied) const {
    const edgekv_layer & layer = layers_[il];
    const uint32_t       n     = n_rows > 0 ? std::min(n_rows, n_probe()) : n_probe();
    const float          scale = window_->read(il, g * layer.n_group, layer.n_group, true, n_past, { n, 0 }, true, n_past - rope_past, nullptr,
                                               queries, positions, copied);
    const float *        sinks = layer.sinks.empty() ? nullptr : &layer.sinks[g * layer.n_group];
    return { sizeof(edgekv_queries), queries, positions, layer.n_group, n, layer.head_dim_k, positions[n - 1] + 1, scale, softcap_, sinks };
}

HostRows edgekv_cache::copied_probe(uint32_t il, uint32_t n_rows) const {
    const uint32_t n = n_rows > 0 ? std::min(n_rows, n_probe()) : n_probe();
    return window_->copied(il, true, n_past, { n, 0 }, work_->copy_queries);
}

// If a head keeps a whole text, that head's keys and the next token are turned by their own positions, whatever others are.
bool edgekv_cache::is_turned() const {
    bool turned = rope_past != n_past;
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        for (uint32_t g = 0; !turned && g < layers_[il].n_head_kv; ++g) {
            const HeadView head = cells(il, g);
            turned              = !std::equal(head.position, head.position + head.n, head.rope_positions());
        }
    }
    return turned;
}

// Without edgekv's own attention, a graph has nodes for heads that lie unlike if heads share cells.
bool edgekv_cache::takes_unevenly() const { return HostAttention::can_attend(flat_) || flat_.attends_by_head(); }

uint32_t edgekv_cache::n_recalled(uint32_t il, uint32_t g) const { return n_recalled_ > 0 ? recalled_[layers_[il].first_head + g] : 0; }

void edgekv_cache::make_room(const std::vector<uint32_t> & n) {
    for (uint32_t il = 0; n_recalled_ > 0 && il < layers_.size(); ++il) {
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            const HeadCells head = cells(il, g);
            std::remove_if(head.order, head.order + head.n, [&](uint32_t cell) { return cell >= head.n - n_recalled(il, g); });
        }
    }
    flat_.lay_out_before_open(n);
    n_filled_ = n_recalled_ = 0;
    lose_probe_keys();
}

void edgekv_cache::lose_probe_keys() {
    if (window_) {
        window_->lose_probe_keys();
    }
}

void edgekv_cache::take_recalled(edgekv_recalled && given) noexcept {
    recalled_.swap(given.counts);
    n_drafted_  = 0;
    n_recalled_ = given.n;
    normed_     = 0; // the next eviction that reads norms computes all
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            const size_t    h     = layers_[il].first_head + g;
            const HeadCells head  = cells(il, g);
            const uint32_t  n     = recalled_[h];
            const uint32_t  first = head.n - n;
            std::copy_n(given.positions.data() + h * given.most, n, head.position + first);
            if (head.rope_position != nullptr) {
                std::copy_n(given.rope_positions.data() + h * given.most, n, head.rope_position + first);
            }
            if (head.accumulated != nullptr) {
                std::fill_n(head.accumulated + first, n, 0.0f); // as if it was fed now
            }
            std::iota(head.order + first, head.order + head.n, first);
            const auto is_earlier = [&](uint32_t a, uint32_t b) { return head.position[a] < head.position[b]; };
            std::inplace_merge(head.order, head.order + first, head.order + head.n, is_earlier);
        }
    }
}

void edgekv_cache::take_refilled(uint32_t n) {
    llama_kv_cells own = own_cells(n_past + static_cast<int32_t>(n), rope_past + static_cast<int32_t>(n));
    n_drafted_         = 0;
    lose_probe_keys();
    fill(n);
    if (kv != nullptr && !is_shared()) {
        kv->take_cells(std::move(own));
    }
}

void edgekv_cache::require_refillable() const {
    const char * lacks = windows_                     ? "rows of sliding windows"
                         : state_                     ? "recurrent states"
                         : params_.n_query_rows > 0   ? "queries of the text, which the policy reads"
                                                      : nullptr;
    if (lacks != nullptr) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "an archive has no %s; feed the tokens again", lacks);
    }
}
