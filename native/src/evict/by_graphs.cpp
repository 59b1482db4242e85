// What graphs score and measure where cells lie on a device, so that the host reads numbers in place of rows.
#include "evict/devices.h"
#include "score/score.h"

#include <algorithm>
#include <iterator>

using namespace edgekv;

// Have graphs score what they can by some rows, so that only scores come here.
void Devices::score_pools(const QueryRows & rows, bool first, const std::vector<uint32_t> & layer_budgets) {
    queries_.reset();
    std::fill(scored_.begin(), scored_.end(), uint8_t(0));
    const bool none = std::all_of(work_.graphs.begin(), work_.graphs.end(), [](const auto & graphs) { return !graphs; });
    if (none || !has_graph(policy_)) {
        return;
    }
    GraphQueries queries = { probed_, cache_.softcap_, {}, {}, {} };
    if (traits_.queries) {
        std::vector<int32_t> positions;
        cache_.window_->each_row(probed_, cache_.n_past, rows, cache_.n_past - cache_.rope_past,
                          [&](uint32_t, uint32_t row, int32_t position, int32_t delta) {
                              queries.rows.push_back(static_cast<int32_t>(row));
                              queries.deltas.push_back(delta);
                              positions.push_back(position);
                          });
        if (!positions.empty() && traits_.sharpened) {
            add_gains(positions, layer_budgets, queries);
        }
    }
    for (size_t p = 0; p < work_.graphs.size(); ++p) {
        const bool sinks = traits_.queries && std::any_of(layers_.begin(), layers_.end(), [&](const edgekv_layer & layer) {
            return layer.pool == p && !layer.sinks.empty(); // no graph knows learnt ones
        });
        const HeadView all = cache_.cells_.at(flat_.pools()[p].offset, 0);
        const int32_t * at = all.rope_position != nullptr ? all.rope_position : all.position;
        if (!probed_ && !queries.rows.empty()) { // how many of these come before each cell
            const auto n_older = cache_.n_past - static_cast<int32_t>(queries.rows.size());
            each_head_of(layers_, p, [&](uint32_t il, uint32_t g) {
                const HeadView head = cache_.cells(il, g);
                std::transform(head.position, head.position + head.n, cache_.work(il, g).score,
                               [&](int32_t position) { return static_cast<float>(position - n_older); });
            });
        }
        const HeadWork found  = work_.cells.at(flat_.pools()[p].offset);
        float *        scores = first ? found.score : found.of_part;
        scored_[p]     = work_.graphs[p] && !sinks && work_.graphs[p]->score_pool(policy_, cache_.n_filled_, queries, at, scores);
    }
}

// How far each layer sharpens each of the rows that score.
void Devices::add_gains(const std::vector<int32_t> & positions, const std::vector<uint32_t> & layer_budgets,
                        GraphQueries & queries) const {
    const size_t n = positions.size();
    queries.gains.resize(n * layers_.size());
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        const edgekv_layer & layer = layers_[il];
        const edgekv_queries rows  = { sizeof(rows),
                                       nullptr,
                                       positions.data(),
                                       layer.n_group,
                                       static_cast<uint32_t>(n),
                                       layer.head_dim_k,
                                       positions.back() + 1,
                                       flat_.attention(layer.il).scale,
                                       cache_.softcap_,
                                       nullptr };
        step_gains(policy_, rows, n, layer_budgets[il], &queries.gains[il * n]);
    }
}

// Have graphs square the values that a prior reads, so that only the squares come here.
void Devices::square_values() {
    std::fill(valued_.begin(), valued_.end(), uint8_t(0));
    for (size_t p = 0; traits_.value_prior && p < work_.graphs.size(); ++p) {
        float * of_values = work_.cells.at(flat_.pools()[p].offset).of_value;
        valued_[p]        = work_.graphs[p] && of_values != nullptr && work_.graphs[p]->square(cache_.n_filled_, of_values);
    }
}

// Write what each value of a pool counts in the mean that CAOTE measures from, and return where that of heavy cells is written;
// these are left out of it, or not.
std::vector<float *> Devices::write_means(size_t pool, bool without_heavy, Scratch & scratch) const {
    std::vector<float *> heavy;
    each_head_of(layers_, pool, [&](uint32_t il, uint32_t g) {
        const HeadView head    = cache_.cells(il, g);
        const HeadWork  found   = cache_.work(il, g);
        float *         weights = scratch.scores.data();
        std::copy_n(found.score, head.n, weights);
        normalise(policy_, head.n, weights);
        const size_t heaviest = heavy_cell(policy_, weights, head.order, head.n);
        write_mean_weights(policy_, weights, head.order, head.n, without_heavy ? heaviest : head.n, found.of_value);
        if (heaviest < head.n) {
            heavy.push_back(&found.of_value[head.order[heaviest]]);
        }
    });
    return heavy;
}

// Have graphs measure how far values are from their mean, as CAOTE does; a heavy one, by a graph of its own, from the mean of the
// others.
void Devices::measure_values(Scratch & scratch) {
    std::fill(valued_.begin(), valued_.end(), uint8_t(0));
    for (size_t p = 0; policy_.weigh != EDGEKV_WEIGH_NONE && p < work_.graphs.size(); ++p) {
        float * of_values = work_.cells.at(flat_.pools()[p].offset).of_value;
        if (!work_.graphs[p] || of_values == nullptr) {
            continue;
        }
        const std::vector<float *> heavy = write_means(p, true, scratch);
        std::vector<float>         apart;
        if (!heavy.empty()) {
            if (!work_.graphs[p]->measure(cache_.n_filled_, of_values)) {
                continue;
            }
            std::transform(heavy.begin(), heavy.end(), std::back_inserter(apart), [](const float * one) { return *one; });
            write_means(p, false, scratch);
        }
        valued_[p] = work_.graphs[p]->measure(cache_.n_filled_, of_values);
        for (size_t i = 0; i < heavy.size(); ++i) {
            *heavy[i] = apart[i];
        }
    }
}

// Have graphs write norm1(V W_O) of new values, so that only the norms come here.
void Devices::norm_values() {
    std::fill(normed_.begin(), normed_.end(), uint8_t(0));
    for (size_t p = 0; policy_.critical && p < work_.graphs.size(); ++p) {
        const bool latent = flat_.pools()[p].v == flat_.pools()[p].k; // of which every query head makes values of its own
        normed_[p]        = work_.graphs[p] && !latent && norm_pool(p);
    }
}

bool Devices::norm_pool(size_t pool) {
    const size_t          n_new = cache_.n_past - cache_.normed_;
    std::vector<uint32_t> first_cells(flat_.n_heads());
    each_head_of(layers_, pool, [&](uint32_t il, uint32_t g) {
        const HeadView head  = cache_.cells(il, g);
        uint32_t &     first = first_cells[layers_[il].first_head + g];
        first                = head.n;
        each_new(head, 0, n_new, [&](size_t, uint32_t cell) { first = std::min(first, cell); });
    });
    std::vector<const std::vector<WeightRows> *> projections;
    std::transform(layers_.begin(), layers_.end(), std::back_inserter(projections), [](const auto & layer) { return &layer.projections; });
    if (!work_.graphs[pool]->norms(cache_.n_filled_, projections, first_cells, work_.cells.at(flat_.pools()[pool].offset).of_value)) {
        return false;
    }
    each_head_of(layers_, pool, [&](uint32_t il, uint32_t g) {
        const HeadWork found = cache_.work(il, g);
        each_new(cache_.cells(il, g), 0, n_new, [&](size_t, uint32_t cell) {
            found.new_norm[cell] = found.of_value[cell] / static_cast<float>(layers_[il].n_group);
        });
    });
    return true;
}
