// Keys that are turned to adjacent RoPE positions when others are evicted.
#include "cache_fixture.h"

#include <numeric>

namespace {

constexpr uint32_t budget = 40;

std::vector<int32_t> rope_positions(const Cache & cache, uint32_t layer, uint32_t g) {
    std::vector<int32_t> positions(cache->cells(layer, g).n);
    CHECK(edgekv_cache_rope_positions(cache.get(), layer, g, positions.data(), nullptr, 0) == EDGEKV_STATUS_OK);
    return positions;
}

// Blocks of a text that is far longer than what any position says; returns what every head holds.
std::vector<Head> read_long_text(const Model & model, const char * kv_type, const char * staging) {
    const Staged         staged(staging);
    const Context       context(model, kv_type);
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.repositions         = 1;
    needs.n_query_rows        = 8;
    needs.n_probe_rows        = 8;
    const Cache          cache = open_cache(context, needs);
    edgekv_cache * const c     = cache.get();

    const std::vector<llama_token> probe(8, 5);
    for (int round = 0; round < 30; ++round) {
        CHECK(feed(cache, round % 4 == 3 ? 1 : n_ubatch) == EDGEKV_STATUS_OK);
        CHECK(edgekv_cache_probe(c, probe.data(), probe.size(), nullptr, 0, nullptr, 0) == EDGEKV_STATUS_OK);
        const uint32_t held      = edgekv_cache_n_cells(c);
        const int32_t  rope_past = edgekv_cache_rope_past(c);
        const auto     before    = read_all(cache);
        const bool     turns     = round % 3 != 2;
        CHECK(compact(cache, policy_of(EDGEKV_BASE_SNAPKV), budget, protecting(2, 3), nullptr, nullptr, turns) == EDGEKV_STATUS_OK);

        const bool evicted = held > budget;
        CHECK(edgekv_cache_rope_past(c) == (evicted && turns ? int32_t(budget) : rope_past));
        const auto after = read_all(cache);
        for (uint32_t layer = 0, i = 0; layer < cache->shape.n_layer; ++layer) {
            for (uint32_t g = 0; g < edgekv_cache_n_heads(c, layer); ++g, ++i) {
                const auto positions = rope_positions(cache, layer, g);
                CHECK(positions.back() == edgekv_cache_rope_past(c) - 1);
                if (evicted && turns) {
                    std::vector<int32_t> adjacent(budget);
                    std::iota(adjacent.begin(), adjacent.end(), 0);
                    CHECK(positions == adjacent);
                } else {
                    check_survivors(before[i], after[i]);
                }
                // values do not move with their keys
                for (size_t j = 0; j < after[i].positions.size(); ++j) {
                    const auto & all   = before[i].positions;
                    const auto   found = std::lower_bound(all.begin(), all.end(), after[i].positions[j]) - all.begin();
                    CHECK(after[i].row(true, j) == before[i].row(true, found));
                }
            }
        }
        CHECK(edgekv_cache_bytes(c) == edgekv_cache_estimate_bytes(&cache->shape, &needs));
    }
    CHECK(edgekv_cache_n_past(c) > 2 * int32_t(cache->shape.n_cells));

    const auto all = read_all(cache);
    CHECK(edgekv_cache_clear(c, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_rope_past(c) == 0 && feed(cache, 1) == EDGEKV_STATUS_OK && rope_positions(cache, 0, 0)[0] == 0);
    return all;
}

// Heads of a layer share what turns their queries, whatever thread scores them. The newest queries are of many lags, so that the turns
// of two heads would meet.
void test_queries_that_turn_on_threads(const Model & model, const char * kv_type) {
    constexpr uint32_t  n_block = 8, n_rows = 192;
    edgekv_policy       policy  = policy_of(EDGEKV_BASE_SNAPKV);
    edgekv_cache_params needs   = edgekv_cache_params_default();
    policy.rows                 = n_rows;
    needs.n_query_rows          = n_rows;
    needs.repositions           = 1;
    const auto evict            = [&](const Cache & cache, uint32_t n_kept, bool turns) {
        CHECK(compact(cache, policy, n_kept, protecting(0, 0), nullptr, nullptr, turns) == EDGEKV_STATUS_OK);
    };
    const Context alone_in(model, kv_type), together_in(model, kv_type, 3);
    const Cache alone = open_cache(alone_in, needs), together = open_cache(together_in, needs);
    for (uint32_t n = 0; n < n_rows; n += n_block) {
        CHECK(feed(alone, n_block) == EDGEKV_STATUS_OK);
        evict(alone, budget, true);
    }
    const Bytes before = save(alone);
    evict(alone, budget / 2, false);
    const auto expected = read_all(alone);
    for (int i = 0; n_failed == 0 && i < 40; ++i) {
        CHECK(restore(together, before) == EDGEKV_STATUS_OK);
        evict(together, budget / 2, false);
        CHECK(read_all(together) == expected);
    }
}

void test_misuse(const Model & model, const char * kv_type) {
    const Context context(model, kv_type);
    const Cache   cache = open_cache(context);
    for (int i = 0; i < 2; ++i) {
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
    }
    const auto before = read_all(cache);
    CHECK(compact(cache, policy_of(EDGEKV_BASE_SINK), budget, protecting(0, 0), nullptr, nullptr, true) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(read_all(cache) == before);
    int32_t position;
    CHECK(edgekv_cache_rope_positions(cache.get(), 99, 0, &position, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_rope_positions(cache.get(), 0, 0, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_rope_past(nullptr) == 0);
}

} // namespace

void test_reposition(const char * model_path, const char * kv_type) {
    const Model model(model_path);
    CHECK(read_long_text(model, kv_type, "auto") == read_long_text(model, kv_type, "copies"));
    read_long_text(model, kv_type, "graphs"); // which rounds some keys otherwise
    test_queries_that_turn_on_threads(model, kv_type);
    test_misuse(model, kv_type);
}
