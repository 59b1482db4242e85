// How a compaction divides the budget: over layers, then over heads.
#include "evict/allot.h"
#include "evict/compaction.h"
#include "hooks/status.h"

#include <algorithm>
#include <functional>
#include <numeric>

using namespace edgekv;

namespace {

// The next head's positions of a list, if there is one.
Positions next_of(const uint32_t * counts, size_t head, const int32_t *& next) {
    if (next == nullptr) {
        return {};
    }
    const Positions found = { next, counts[head] };
    next += found.n;
    require(std::adjacent_find(found.first, next, std::greater_equal<>()) == next, "positions beside or within a budget do not ascend");
    return found;
}

} // namespace

// What stays beside the budgets, and within, and how much of the former each head holds.
void Compaction::list_staying() {
    require((params_.n_beside == nullptr) == (params_.beside == nullptr), "n_beside and beside are given both, or neither");
    require((params_.n_within == nullptr) == (params_.within == nullptr), "n_within and within are given both, or neither");
    if (params_.beside == nullptr && params_.within == nullptr) {
        return;
    }
    const int32_t * beside = params_.beside;
    const int32_t * within = params_.within;
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            const HeadView head    = cache_.cells(il, g);
            Staying &      staying = staying_[layers_[il].first_head + g];
            staying.beside         = next_of(params_.n_beside, layers_[il].first_head + g, beside);
            staying.within         = next_of(params_.n_within, layers_[il].first_head + g, within);
            const auto n_held = std::count_if(head.order, head.order + head.n, [&](uint32_t cell) { return staying.beside.has(head.position[cell]); });
            staying.rest      = head.n_rests() > 0 && staying.beside.has(rest_position);
            staying.n_held    = static_cast<uint32_t>(n_held) - staying.rest;
        }
    }
}

// What each layer's heads may keep on average, and each head before they share.
void Compaction::divide_layers() {
    // so that there is room for what is fed next
    const auto     add    = [](uint64_t sum, const Staying & it) { return sum + it.n_held + it.rest; };
    const uint64_t n_all  = uint64_t(params_.budget) * staying_.size() + std::accumulate(staying_.begin(), staying_.end(), uint64_t(0), add);
    const auto     stays  = static_cast<uint32_t>((n_all + staying_.size() - 1) / staying_.size()); // of a head on average
    const uint32_t spare  = cache_.shape.n_cells - std::min(cache_.shape.n_cells, stays);
    largest_             = std::max(params_.budget, cache_.shape.n_cells_max - std::min(cache_.shape.n_cells_max, spare));
    if (params_.budgets != nullptr) {
        check_budgets();
    }
    if (policy_.pyramid > 0.0) {
        layer_budgets(policy_.pyramid, layers_.size(), params_.budget, max_protected(), largest_,
                      layer_budgets_.data());
    } else {
        std::fill(layer_budgets_.begin(), layer_budgets_.end(), params_.budget);
    }
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        std::fill_n(budgets_.begin() + layers_[il].first_head, layers_[il].n_head_kv, layer_budgets_[il]);
    }
    if (params_.budgets != nullptr) {
        std::copy_n(params_.budgets, budgets_.size(), budgets_.begin());
    }
}

// Budgets that the host gives: heads that share a pool of rows are bounded together.
void Compaction::check_budgets() const {
    std::vector<uint64_t> sums(flat_.pools().size(), 0);
    const uint32_t *      budget = params_.budgets;
    for (const edgekv_layer & layer : layers_) {
        sums[layer.pool] = std::accumulate(budget, budget + layer.n_head_kv, sums[layer.pool]);
        budget += layer.n_head_kv;
    }
    const uint32_t most = *std::max_element(params_.budgets, budget);
    for (size_t p = 0; p < sums.size(); ++p) {
        const uint32_t n_heads = flat_.pools()[p].n_heads;
        if (sums[p] > uint64_t(params_.budget) * n_heads || most > largest_) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT,
                 "budgets of %llu cells for the %u heads that share rows, and %u at most, but %u per head and %u at most are possible",
                 static_cast<unsigned long long>(sums[p]), n_heads, most, params_.budget, largest_);
        }
    }
}

// Protected cells of a head, at most. Heads of a layer differ where one evicted what was protected later.
uint32_t Compaction::max_protected() const {
    uint32_t most = 0;
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            const HeadView head   = cache_.cells(il, g);
            const Staying  within = { {}, staying_[layers_[il].first_head + g].within };
            const Ranked   ranked = tokens_of(nullptr, head.position, head.order, head.n, within);
            uint32_t       n      = 0;
            for (size_t i = 0; i < ranked.n; ++i) {
                n += is_protected(ranked, i, *params_.protection);
            }
            most = std::max(most, n);
        }
    }
    return most;
}

// Whether some cells must go.
bool Compaction::is_full() const {
    bool full = false;
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        uint64_t n_layer = 0;
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            const size_t   h = layers_[il].first_head + g;
            const uint32_t n = cache_.cells(il, g).n - staying_[h].n_held - staying_[h].rest;
            n_layer += n;
            full |= n > (policy_.spread == EDGEKV_SPREAD_HEAD ? budgets_[h] : largest_);
        }
        const uint64_t budget = uint64_t(layer_budgets_[il]) * layers_[il].n_head_kv;
        full |= policy_.spread == EDGEKV_SPREAD_LAYER && n_layer > budget;
    }
    return full;
}

// What each head keeps: no more than it holds, and what it gets where heads share a budget.
void Compaction::divide_heads() {
    std::vector<Ranked>   heads;
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        const size_t first = layers_[il].first_head;
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            const HeadView       head   = cache_.cells(il, g);
            const HeadWork       found  = cache_.work(il, g);
            const Staying & staying = staying_[first + g];
            heads.push_back(tokens_of(policy_.softmax ? found.softmax : found.score, head.position, head.order, head.n, staying));
            budgets_[first + g] = std::min(static_cast<uint32_t>(heads.back().n), budgets_[first + g] + staying.n_held);
        }
        if (policy_.spread == EDGEKV_SPREAD_LAYER) {
            allot(heads.data() + first, layers_[il].n_head_kv, *params_.protection, layer_budgets_[il], largest_, policy_.safeguard,
                  work_.contest.data(), budgets_.data() + first);
        }
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            budgets_[first + g] += staying_[first + g].rest;
        }
    }
    // for llama.cpp one cell stands for all that are kept; without any, no token could follow
    if (std::all_of(budgets_.begin(), budgets_.end(), [](uint32_t budget) { return budget == 0; })) {
        throw Error(EDGEKV_STATUS_INVALID_ARGUMENT, "budgets of 0 cells for all heads that hold any keep nothing; give one of them at "
                                                    "least 1, or clear the cache");
    }
}
