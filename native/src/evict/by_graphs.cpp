// What graphs score and measure where cells lie on a device, so that the host reads numbers in place of rows.
#include "cache/cache.h"

#include <algorithm>
#include <iterator>

using namespace edgekv;

// Have graphs score what they can, so that only scores come here.
void edgekv_cache::score_by_graphs(const edgekv_compaction_params & params) {
    std::fill(scored_.begin(), scored_.end(), uint8_t(0));
    const bool none = std::all_of(graphs_.begin(), graphs_.end(), [](const auto & graphs) { return !graphs; });
    if (none || parts_.size() > 1 || !has_graph(*params.policy)) { // no graph knows parts
        return;
    }
    GraphQueries queries = { params.probed != 0, softcap_, {}, {}, {} };
    if (traits_of(*params.policy).queries) {
        std::vector<int32_t> positions;
        window_->each_row(params.probed != 0, n_past, parts_[0], n_past - rope_past,
                          [&](uint32_t, uint32_t row, int32_t position, int32_t delta) {
                              queries.rows.push_back(static_cast<int32_t>(row));
                              queries.deltas.push_back(delta);
                              positions.push_back(position);
                          });
        if (!positions.empty() && traits_of(*params.policy).sharpened) {
            add_gains(*params.policy, positions, queries);
        }
    }
    for (size_t p = 0; p < graphs_.size(); ++p) {
        const bool sinks = traits_of(*params.policy).queries && std::any_of(layers_.begin(), layers_.end(), [&](const edgekv_layer & layer) {
            return layer.pool == p && !layer.sinks.empty(); // no graph knows learnt ones
        });
        const HeadCells all    = cells_.at(flat_.pools()[p].offset, 0);
        const int32_t * at     = all.rope_position != nullptr ? all.rope_position : all.position;
        if (!params.probed && !queries.rows.empty()) { // how many of these come before each cell
            const auto n_older = n_past - static_cast<int32_t>(queries.rows.size());
            each_head_of(p, [&](uint32_t il, uint32_t g) {
                const HeadCells head = cells(il, g);
                std::transform(head.position, head.position + head.n, head.score,
                               [&](int32_t position) { return static_cast<float>(position - n_older); });
            });
        }
        scored_[p] = graphs_[p] && !sinks && graphs_[p]->score(*params.policy, n_filled_, queries, at, all.score);
    }
}

// How far each layer sharpens each of the rows that score.
void edgekv_cache::add_gains(const edgekv_policy & policy, const std::vector<int32_t> & positions, GraphQueries & queries) const {
    const size_t n = positions.size();
    queries.gains.resize(n * layers_.size());
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        const edgekv_layer & layer = layers_[il];
        const edgekv_queries rows  = { nullptr, positions.data(), layer.n_group, n, layer.head_dim_k, positions.back() + 1,
                                       flat_.attention(layer.il).scale, softcap_, nullptr };
        step_gains(policy, rows, n, layer_budgets_[il], &queries.gains[il * n]);
    }
}

// Have graphs square the values that a prior reads, so that only the squares come here.
void edgekv_cache::square_by_graphs(const edgekv_policy & policy) {
    std::fill(valued_.begin(), valued_.end(), uint8_t(0));
    for (size_t p = 0; traits_of(policy).value_prior && p < graphs_.size(); ++p) {
        float * of_values = cells_.at(flat_.pools()[p].offset, 0).of_value;
        valued_[p]        = graphs_[p] && of_values != nullptr && graphs_[p]->square(n_filled_, of_values);
    }
}

// Write what each value of a pool counts in the mean that CAOTE measures from, and return where that of heavy cells is written;
// these are left out of it, or not.
std::vector<float *> edgekv_cache::write_means(size_t pool, const edgekv_policy & policy, bool without_heavy, Scratch & scratch) const {
    std::vector<float *> heavy;
    each_head_of(pool, [&](uint32_t il, uint32_t g) {
        const HeadCells head    = cells(il, g);
        float *         weights = scratch.scores.data();
        std::copy_n(head.score, head.n, weights);
        normalise(policy, head.n, weights);
        const size_t found = heavy_cell(policy, weights, head.order, head.n);
        write_mean_weights(policy, weights, head.order, head.n, without_heavy ? found : head.n, head.of_value);
        if (found < head.n) {
            heavy.push_back(&head.of_value[head.order[found]]);
        }
    });
    return heavy;
}

// Have graphs measure how far values are from their mean, as CAOTE does; a heavy one, by a graph of its own, from the mean of the
// others.
void edgekv_cache::measure_by_graphs(const edgekv_policy & policy, Scratch & scratch) {
    std::fill(valued_.begin(), valued_.end(), uint8_t(0));
    for (size_t p = 0; policy.weigh != EDGEKV_WEIGH_NONE && policy.rounds == 1 && p < graphs_.size(); ++p) {
        float * of_values = cells_.at(flat_.pools()[p].offset, 0).of_value;
        if (!graphs_[p] || of_values == nullptr) {
            continue;
        }
        const std::vector<float *> heavy = write_means(p, policy, true, scratch);
        std::vector<float>         apart;
        if (!heavy.empty()) {
            if (!graphs_[p]->measure(n_filled_, of_values)) {
                continue;
            }
            std::transform(heavy.begin(), heavy.end(), std::back_inserter(apart), [](const float * one) { return *one; });
            write_means(p, policy, false, scratch);
        }
        valued_[p] = graphs_[p]->measure(n_filled_, of_values);
        for (size_t i = 0; i < heavy.size(); ++i) {
            *heavy[i] = apart[i];
        }
    }
}
