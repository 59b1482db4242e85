// A cache whose heads hold different numbers of cells, and others after every compaction.
#include "cache_fixture.h"

#include <numeric>
#include <random>

namespace {

constexpr uint32_t mean = 40, largest = 3 * mean, least = 8;

const edgekv_layout ragged_layout = { sizeof(edgekv_layout), mean + 2 * n_ubatch, largest + 2 * n_ubatch, 0 };

// Budgets of that mean, none above what its head holds.
std::vector<uint32_t> draw_budgets(const Cache & cache, std::mt19937 & random) {
    std::vector<uint32_t> held;
    for (uint32_t layer = 0; layer < cache->shape.n_layer; ++layer) {
        for (uint32_t g = 0; g < edgekv_cache_n_heads(cache.get(), layer); ++g) {
            held.push_back(std::min(cache->cells(layer, g).n, largest));
        }
    }
    std::vector<uint32_t> budgets(held.size());
    uint32_t              sum = 0;
    for (size_t i = 0; i < held.size(); ++i) {
        budgets[i] = std::min(held[i], least);
        sum += budgets[i];
    }
    const uint32_t all = std::min<uint32_t>(mean * held.size(), std::accumulate(held.begin(), held.end(), 0u));
    for (size_t i = random() % held.size(); sum < all; i = random() % held.size()) {
        const uint32_t more = std::min({ held[i] - budgets[i], all - sum, static_cast<uint32_t>(random() % mean) });
        budgets[i] += more;
        sum += more;
    }
    return budgets;
}

std::vector<uint32_t> numbers_held(const std::vector<Head> & heads) {
    std::vector<uint32_t> held;
    for (const Head & head : heads) {
        held.push_back(head.positions.size());
    }
    return held;
}

// Blocks, single tokens and probes in turn, and new budgets at every compaction.
void test_budgets_that_change(const Model & model, const char * kv_type, const char * staging) {
    const Staged staged(staging);
    const Context       context(model, kv_type, 1, ragged_layout);
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.ragged              = 1;
    needs.accumulates         = 1;
    needs.n_probe_rows        = 16;
    const Cache    cache = open_cache(context, needs);
    edgekv_cache * c     = cache.get();
    std::mt19937   random(7);

    const int32_t           pinned[] = { 10, 12 };
    const edgekv_protection protects = { sizeof(edgekv_protection), 2, 3, pinned, 1 };
    for (int round = 0; round < (is_sanitized ? 8 : 24); ++round) {
        if (round % 3 == 0) {
            for (uint32_t i = 0, n = 1 + random() % 20; i < n; ++i) {
                CHECK(feed(cache, 1) == EDGEKV_STATUS_OK);
            }
        } else {
            CHECK(feed(cache, 1 + random() % n_ubatch) == EDGEKV_STATUS_OK);
        }
        const std::vector<llama_token> probe(1 + random() % 16, 5);
        CHECK(edgekv_cache_probe(c, probe.data(), probe.size(), nullptr, 0, nullptr, 0) == EDGEKV_STATUS_OK);

        const auto        before  = read_all(cache);
        const auto        budgets = draw_budgets(cache, random);
        edgekv_compaction result;
        CHECK(compact(cache, policy_of(EDGEKV_BASE_RANDOM), mean, protects, &result, budgets.data()) == EDGEKV_STATUS_OK);
        const auto after = read_all(cache);
        CHECK(numbers_held(after) == budgets);
        const auto held = numbers_held(before);
        CHECK(result.n_evicted == std::accumulate(held.begin(), held.end(), 0u) - std::accumulate(budgets.begin(), budgets.end(), 0u));
        for (size_t i = 0; i < after.size(); ++i) {
            check_survivors(before[i], after[i]);
            CHECK(after[i].positions[0] == 0 && after[i].positions.back() == edgekv_cache_n_past(c) - 1);
        }
        CHECK(edgekv_cache_n_free(c) >= 2 * n_ubatch);
        CHECK(edgekv_cache_bytes(c) == edgekv_cache_estimate_bytes(&cache->shape, &needs));
    }
    CHECK(edgekv_cache_n_cells(c) == mean);

    CHECK(edgekv_cache_clear(c, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_n_cells(c) == 0 && edgekv_cache_n_free(c) == ragged_layout.n_cells);
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
}

// Policies that share cells out: the sum is that of even budgets, and some head has another number than the mean.
void test_policies_that_share(const Model & model, const char * kv_type) {
    for (const int32_t spread : { EDGEKV_SPREAD_HEAD, EDGEKV_SPREAD_LAYER }) {
        for (const double beta : { 0.0, 20.0 }) {
            edgekv_policy policy = policy_of(EDGEKV_BASE_H2O);
            policy.spread        = spread;
            policy.safeguard     = 0.2;
            policy.pyramid       = beta;
            edgekv_cache_params needs = edgekv_cache_params_default();
            CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
            const bool ragged = spread != EDGEKV_SPREAD_HEAD || beta > 0.0;
            CHECK((needs.ragged != 0) == ragged);
            const Context context(model, kv_type, 2, ragged_layout);
            const Cache   cache = open_cache(context, needs);
            for (int round = 0; round < 12; ++round) {
                CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
                CHECK(compact(cache, policy, mean, protecting(2, 3)) == EDGEKV_STATUS_OK);
            }
            const auto held = numbers_held(read_all(cache));
            CHECK(std::accumulate(held.begin(), held.end(), 0u) == mean * held.size());
            CHECK((*std::max_element(held.begin(), held.end()) > mean) == ragged);
        }
    }
}

void test_budgets_that_cannot_be(const Model & model, const char * kv_type) {
    const Context         context(model, kv_type, 1, ragged_layout);
    Cache                 even = open_cache(context);
    std::vector<uint32_t> budgets(even->shape.n_head_total, mean);
    CHECK(feed(even, n_ubatch) == EDGEKV_STATUS_OK && feed(even, n_ubatch) == EDGEKV_STATUS_OK);
    CHECK(compact(even, policy_of(EDGEKV_BASE_SINK), mean, protecting(0, 0), nullptr, budgets.data()) == EDGEKV_STATUS_INVALID_STATE);
    even.reset();

    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.ragged              = 1;
    const Cache cache         = open_cache(context, needs);
    CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
    const auto before = read_all(cache);
    const auto refused = [&](uint32_t first, uint32_t others) {
        std::fill(budgets.begin(), budgets.end(), others);
        budgets[0] = first;
        return compact(cache, policy_of(EDGEKV_BASE_SINK), mean, protecting(2, 3), nullptr, budgets.data()) ==
               EDGEKV_STATUS_INVALID_ARGUMENT;
    };
    CHECK(refused(mean + 1, mean));
    CHECK(refused(largest + 1, 1));
    CHECK(refused(4, mean)); // fewer than the protected cells
    CHECK(read_all(cache) == before);

    uint32_t n = 0;
    CHECK(edgekv_cache_head_cells(cache.get(), 99, 0, &n, &n, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_head_cells(cache.get(), 0, 0, nullptr, &n, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_n_heads(cache.get(), 99) == 0 && edgekv_cache_n_heads(nullptr, 0) == 0 && edgekv_cache_n_free(nullptr) == 0);
}

} // namespace

void test_ragged(const char * model_path, const char * kv_type) {
    const Model model(model_path);
    for (const char * staging : { "auto", "copies", "graphs" }) {
        test_budgets_that_change(model, kv_type, staging);
    }
    test_policies_that_share(model, kv_type);
    test_budgets_that_cannot_be(model, kv_type);
}
