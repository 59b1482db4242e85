// Rows that graphs score, beside the host's kernels.
#include "cache_fixture.h"

#include <cmath>

namespace {

// The scores of the cells of all heads, whose oldest cell is newer than half of the rows that score.
std::vector<float> scores_of_newest(const Model & model, const char * kv_type, const char * staging, int32_t aggregate) {
    const Staged staged(staging);
    const Context context(model, kv_type);
    edgekv_policy policy       = policy_of(EDGEKV_BASE_SNAPKV);
    policy.aggregate           = aggregate;
    edgekv_cache_params needs  = edgekv_cache_params_default();
    CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
    const Cache cache = open_cache(context, needs);
    CHECK(feed(cache, 16) == EDGEKV_STATUS_OK);
    CHECK(compact(cache, policy_of(EDGEKV_BASE_SINK), 4) == EDGEKV_STATUS_OK); // the newest four stay
    CHECK(compact(cache, policy, 3, protecting(0, 3)) == EDGEKV_STATUS_OK);
    std::vector<float> scores;
    for (uint32_t layer = 0; layer < cache->shape.n_layer; ++layer) {
        for (uint32_t g = 0; g < cache->n_heads(layer); ++g) {
            const float * of_head = cache->work(layer, g).score;
            scores.insert(scores.end(), of_head, of_head + 4);
        }
    }
    return scores;
}

} // namespace

void test_graphs(const char * path, const char * kv_type) {
    const Model model(path);
    for (const int32_t aggregate : { EDGEKV_AGGREGATE_MEAN, EDGEKV_AGGREGATE_MAX }) {
        const auto expected = scores_of_newest(model, kv_type, "auto", aggregate);
        const auto found    = scores_of_newest(model, kv_type, "graphs", aggregate);
        CHECK(found.size() == expected.size() && !found.empty());
        for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
            CHECK(std::abs(found[i] - expected[i]) <= 2e-3f * std::abs(expected[i]) + 1e-4f); // a row that sees no cell gives nothing
        }
    }
}
