// Scores by a scorer of the host's own.
#include "evict/compaction.h"
#include "evict/select.h"
#include "hooks/status.h"

#include <algorithm>
#include <cmath>

using namespace edgekv;

// Let the host's scorer score one layer: adjacent heads that hold equally many tokens come in one call.
void Compaction::score_custom(uint32_t il, const QueryRows & rows) {
    const uint32_t n_heads = layers_[il].n_head_kv;
    for (uint32_t begin = 0, end = 0; begin < n_heads; begin = end) {
        const uint32_t n = cache_.cells(il, begin).n_tokens();
        while (end < n_heads && cache_.cells(il, end).n_tokens() == n) {
            ++end;
        }
        if (n > 0) {
            score_custom(il, begin, end, rows);
        }
    }
}

// The same for the heads [begin, end), which hold equally many; its arrays hold the tokens ascending by position.
void Compaction::score_custom(uint32_t il, uint32_t begin, uint32_t end, const QueryRows & queries) {
    const edgekv_layer &  layer  = layers_[il];
    const edgekv_scorer & scorer = *policy_.scorer;

    edgekv_layer_view view = {};
    view.layer             = il;
    view.first_head_kv     = begin;
    view.n_head_kv         = end - begin;
    view.n_head            = layer.n_group * view.n_head_kv;
    view.n                 = cache_.cells(il, begin).n_tokens();
    view.head_dim_k        = layer.head_dim_k;
    view.head_dim_v        = layer.head_dim_v;
    view.positions         = work_.custom.positions.data();
    view.sinks             = layer.sinks.empty() ? nullptr : &layer.sinks[begin * layer.n_group];
    for (const bool values : { false, true }) {
        if (!(scorer.reads & (values ? EDGEKV_READS_VALUES : EDGEKV_READS_KEYS))) {
            continue;
        }
        float * dst                        = values ? work_.custom.values.data() : work_.custom.keys.data();
        (values ? view.values : view.keys) = dst;
        for (uint32_t g = begin; g < end; ++g) {
            const HeadView head = cache_.cells(il, g);
            HostRows        host = devices_.rows(il, g, values, head.n);
            const Rows      rows = rows_of_head(il, values, host, head.n);
            for (uint32_t i = head.n_rests(); i < head.n; ++i, dst += rows.dim()) {
                rows.read(head.order[i], dst);
                if (rows.rotation() > 0) {
                    rotate_hadamard(dst, rows.dim(), rows.rotation());
                }
            }
        }
    }
    if (scorer.reads & EDGEKV_READS_QUERIES) {
        view.n_rows  = queries.n;
        view.queries = work_.custom.queries.data();

        view.query_positions = work_.custom.rows.data();
        if (view.n_rows > 0) {
            cache_.window_->read(il, begin * layer.n_group, view.n_head, params_.probed != 0, cache_.n_past, queries, true,
                                 cache_.n_past - cache_.rope_past, work_.turn_of(il), work_.custom.queries.data(), work_.custom.rows.data(),
                                 devices_.queries(il, queries));
        }
        if (cache_.rotation_ > 0) {
            for (uint32_t i = 0; i < view.n_head * view.n_rows; ++i) {
                float * row = work_.custom.queries.data() + size_t(i) * layer.head_dim_k;
                rotate_hadamard(row, layer.head_dim_k, cache_.rotation_);
            }
        }
    }
    int32_t * position = work_.custom.positions.data();
    for (uint32_t g = begin; g < end; ++g) {
        const HeadView head = cache_.cells(il, g);
        position = std::transform(head.order + head.n_rests(), head.order + head.n, position, [&](uint32_t cell) { return head.position[cell]; });
    }
    // a scorer that was cut off leaves some as they are, whatever it returns; they are refused before anything is made of them
    std::fill_n(work_.custom.scores.data(), size_t(view.n_head_kv) * view.n, NAN);
    if (scorer.score(scorer.user_data, &view, work_.custom.scores.data()) != 0) {
        throw Error(EDGEKV_STATUS_INTERNAL, "the scorer failed");
    }
    const float * score = work_.custom.scores.data();
    for (uint32_t g = begin; g < end; ++g) {
        const HeadView head = cache_.cells(il, g);
        float * const  given = work_.custom.by_cell_of(g);
        std::fill_n(given + head.rest(), head.n_rests(), 0.0f);
        for (uint32_t i = head.n_rests(); i < head.n; ++i) {
            given[head.order[i]] = *score++;
        }
        require_finite(tokens_of(given, head.position, head.order, head.n));
    }
}
