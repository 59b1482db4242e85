// Scores by a scorer of the host's own.
#include "cache/cache.h"
#include "hooks/status.h"

#include <algorithm>
#include <cmath>

using namespace edgekv;

// Let the host's scorer score one layer: adjacent heads that hold equally many cells come in one call.
void edgekv_cache::score_custom(uint32_t il, const edgekv_compaction_params & params, const QueryRows & rows) {
    const uint32_t n_heads = layers_[il].n_head_kv;
    for (uint32_t begin = 0, end = 0; begin < n_heads; begin = end) {
        const uint32_t n = cells(il, begin).n;
        while (end < n_heads && cells(il, end).n == n) {
            ++end;
        }
        if (n > 0) {
            score_custom(il, begin, end, params, rows);
        }
    }
}

// The same for the heads [begin, end), which hold equally many; its arrays hold the cells ascending by position.
void edgekv_cache::score_custom(uint32_t il, uint32_t begin, uint32_t end, const edgekv_compaction_params & params,
                                const QueryRows & queries) {
    const edgekv_layer &  layer  = layers_[il];
    const edgekv_scorer & scorer = *params.policy->scorer;

    edgekv_layer_view view = {};
    view.layer             = il;
    view.first_head_kv     = begin;
    view.n_head_kv         = end - begin;
    view.n_head            = layer.n_group * view.n_head_kv;
    view.n                 = cells(il, begin).n;
    view.head_dim_k        = layer.head_dim_k;
    view.head_dim_v        = layer.head_dim_v;
    view.positions         = custom_.positions.data();
    view.sinks             = layer.sinks.empty() ? nullptr : &layer.sinks[begin * layer.n_group];
    for (const bool values : { false, true }) {
        if (!(scorer.reads & (values ? EDGEKV_READS_VALUES : EDGEKV_READS_KEYS))) {
            continue;
        }
        float * dst                        = values ? custom_.values.data() : custom_.keys.data();
        (values ? view.values : view.keys) = dst;
        for (uint32_t g = begin; g < end; ++g) {
            const HeadCells head = cells(il, g);
            HostRows        host = host_rows(il, g, values, head.n);
            const Rows      rows = rows_of_head(il, values, host, head.n);
            for (uint32_t i = 0; i < head.n; ++i, dst += rows.dim()) {
                rows.read(head.order[i], dst);
                if (rows.rotation() > 0) {
                    rotate_hadamard(dst, rows.dim(), rows.rotation());
                }
            }
        }
    }
    if (scorer.reads & EDGEKV_READS_QUERIES) {
        view.n_rows  = queries.n;
        view.queries = custom_.queries.data();

        view.query_positions = custom_.rows.data();
        if (view.n_rows > 0) {
            query_bytes_ += copies(layer) ? sizeof(float) * view.n_rows * view.n_head * layer.head_dim_k : 0;
            window_->read(il, begin * layer.n_group, view.n_head, params.probed != 0, n_past, queries, true, n_past - rope_past,
                          turn_of(il), custom_.queries.data(), custom_.rows.data());
        }
        if (rotation_ > 0) {
            for (uint32_t i = 0; i < view.n_head * view.n_rows; ++i) {
                rotate_hadamard(custom_.queries.data() + size_t(i) * layer.head_dim_k, layer.head_dim_k, rotation_);
            }
        }
    }
    int32_t * position = custom_.positions.data();
    for (uint32_t g = begin; g < end; ++g) {
        const HeadCells head = cells(il, g);
        position = std::transform(head.order, head.order + head.n, position, [&](uint32_t cell) { return head.position[cell]; });
    }
    // a scorer that was cut off leaves some as they are, whatever it returns; the selection then refuses them
    std::fill_n(custom_.scores.data(), size_t(view.n_head_kv) * view.n, NAN);
    if (scorer.score(scorer.user_data, &view, custom_.scores.data()) != 0) {
        throw Error(EDGEKV_STATUS_INTERNAL, "the scorer failed");
    }
    const float * score = custom_.scores.data();
    for (uint32_t g = begin; g < end; ++g) {
        const HeadCells head = cells(il, g);
        for (uint32_t i = 0; i < head.n; ++i) {
            custom_.by_cell_of(g)[head.order[i]] = *score++;
        }
    }
}
