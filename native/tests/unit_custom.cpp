// A scorer of the host's own: it is told the truth of every head, however many cells each holds.
#include "cache_fixture.h"
#include "rows/rows.h"

#include <numeric>
#include <utility>

using namespace edgekv;

namespace {

constexpr uint32_t mean = 40, n_rows = 8;

const edgekv_layout ragged_layout = { sizeof(edgekv_layout), mean + 2 * n_ubatch, 3 * mean + 2 * n_ubatch, 0 };

// No two cells of a head have the same score.
float score_of(uint32_t layer, uint32_t head, int32_t position) { return (position * 7919 + (31 * layer + head) * 101) % 1009; }

// What one call was given, and which of its heads hold what the cache says they hold.
struct Scorer {
    const Cache *                                          cache;
    std::vector<std::pair<uint32_t, uint32_t>>             runs; // first head and heads of every call
    std::vector<std::vector<float>>                        queries; // of every layer, as edgekv_cache_queries has them
    std::vector<std::vector<Head>>                         held;    // of every layer

    void check_head(const edgekv_layer_view & view, uint32_t g) const {
        const Head & head = held[view.layer][view.first_head_kv + g];
        if (!CHECK(head.positions.size() == view.n)) {
            return;
        }
        CHECK(std::equal(head.positions.begin(), head.positions.end(), view.positions + size_t(g) * view.n));
        for (const bool values : { false, true }) {
            const edgekv_rows & described = values ? head.v_rows : head.k_rows;
            const float *       seen      = (values ? view.values : view.keys) + size_t(g) * view.n * described.dim;
            const Rows          rows(described);
            std::vector<float>  row(described.dim);
            for (uint32_t i = 0; i < view.n; ++i, seen += described.dim) {
                rows.read(i, row.data());
                if (described.rotation > 0) {
                    rotate_hadamard(row.data(), described.dim, described.rotation);
                }
                CHECK(std::equal(row.begin(), row.end(), seen));
            }
        }
    }

    // (n_rows, all heads of the layer, dim) as the cache gives them, (heads of the call, n_rows, dim) as the scorer is given them
    void check_queries(const edgekv_layer_view & view) const {
        const uint32_t dim      = view.head_dim_k;
        const uint32_t n_group  = view.n_head / view.n_head_kv;
        const uint32_t n_all    = n_group * static_cast<uint32_t>(held[view.layer].size());
        const uint32_t rotation = held[view.layer][0].k_rows.rotation;
        for (uint32_t h = 0; h < view.n_head; ++h) {
            for (uint32_t w = 0; w < view.n_rows; ++w) {
                const size_t       from = (size_t(w) * n_all + view.first_head_kv * n_group + h) * dim;
                const auto         own  = queries[view.layer].begin() + from;
                std::vector<float> row(own, own + dim);
                if (rotation > 0) {
                    rotate_hadamard(row.data(), dim, rotation);
                }
                CHECK(std::equal(row.begin(), row.end(), view.queries + (size_t(h) * view.n_rows + w) * dim));
            }
        }
    }

    static int32_t score(void * user_data, const edgekv_layer_view * view, float * scores) {
        auto & scorer = *static_cast<Scorer *>(user_data);
        scorer.runs.push_back({ view->first_head_kv, view->n_head_kv });
        CHECK(view->n > 0 && view->n_rows == n_rows);
        scorer.check_queries(*view);
        for (uint32_t g = 0; g < view->n_head_kv; ++g) {
            scorer.check_head(*view, g);
            for (uint32_t i = 0; i < view->n; ++i) {
                const size_t at = size_t(g) * view->n + i;
                scores[at]      = score_of(view->layer, view->first_head_kv + g, view->positions[at]);
            }
        }
        return 0;
    }
};

std::vector<int32_t> best(const std::vector<int32_t> & positions, size_t n, uint32_t layer, uint32_t head) {
    std::vector<int32_t> sorted = positions;
    std::sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) { return score_of(layer, head, a) > score_of(layer, head, b); });
    sorted.resize(std::min(n, sorted.size()));
    std::sort(sorted.begin(), sorted.end());
    return sorted;
}

void test_ragged_heads(const Model & model, const char * kv_type, const char * staging) {
    const Staged        staged(staging);
    Scorer              seen   = {};
    const edgekv_scorer scorer = { sizeof(edgekv_scorer), Scorer::score, &seen,
                                   EDGEKV_READS_KEYS | EDGEKV_READS_VALUES | EDGEKV_READS_QUERIES | EDGEKV_READS_POSITIONS, n_rows };
    edgekv_policy policy = policy_of(EDGEKV_BASE_CUSTOM);
    policy.rows          = n_rows;
    policy.scorer        = &scorer;

    edgekv_cache_params needs = edgekv_cache_params_default();
    CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
    needs.ragged = EDGEKV_RAGGED_HEADS;
    const Context  context(model, kv_type, 2, ragged_layout);
    const Cache    cache   = open_cache(context, needs);
    const uint32_t n_heads = cache->shape.n_head_total / cache->shape.n_layer;
    seen.cache             = &cache;

    // the first layer's heads differ, those of the second do not; one of the first is emptied
    std::vector<uint32_t> budgets(cache->shape.n_head_total, mean);
    budgets[0] = mean + 9;
    budgets[1] = 0;
    for (int round = 0; round < 4; ++round) {
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
        seen.runs.clear();
        seen.held.assign(cache->shape.n_layer, {});
        seen.queries.clear();
        for (uint32_t layer = 0; layer < cache->shape.n_layer; ++layer) {
            for (uint32_t g = 0; g < n_heads; ++g) {
                seen.held[layer].push_back(read_head(cache, layer, g));
            }
            std::vector<float> queries(size_t(n_rows) * cache->shape.n_head_max * cache->shape.head_dim_k);
            int32_t            positions[n_rows];
            uint32_t           n = n_rows;
            float              scale;
            CHECK(edgekv_cache_queries(cache.get(), layer, 0, queries.data(), positions, &n, &scale, nullptr, 0) == EDGEKV_STATUS_OK);
            seen.queries.push_back(queries);
        }
        CHECK(compact(cache, policy, mean, protecting(0, 0), nullptr, budgets.data()) == EDGEKV_STATUS_OK);

        // one call a layer while its heads hold equally many, else one a run
        std::vector<std::pair<uint32_t, uint32_t>> runs = { { 0, n_heads } };
        if (round > 0) {
            runs = { { 0, 1 }, { 1, 1 } };
            if (n_heads > 2) {
                runs.push_back({ 2, n_heads - 2 });
            }
        }
        runs.resize(runs.size() + cache->shape.n_layer - 1, { 0, n_heads });
        CHECK(seen.runs == runs);
        for (uint32_t layer = 0; layer < cache->shape.n_layer; ++layer) {
            for (uint32_t g = 0; g < n_heads; ++g) {
                const auto expected = best(seen.held[layer][g].positions, budgets[layer * n_heads + g], layer, g);
                CHECK(read_head(cache, layer, g).positions == expected);
            }
        }
    }

    // heads that hold nothing are no heads to score
    seen.runs.clear();
    for (auto & heads : seen.held) {
        heads.clear();
    }
    for (uint32_t layer = 0; layer < cache->shape.n_layer; ++layer) {
        for (uint32_t g = 0; g < n_heads; ++g) {
            seen.held[layer].push_back(read_head(cache, layer, g));
        }
    }
    budgets[0] = 1;
    CHECK(compact(cache, policy, mean, protecting(0, 0), nullptr, budgets.data()) == EDGEKV_STATUS_OK);
    CHECK(seen.runs.front() == std::make_pair(0u, 1u) && seen.runs[1].first != 1);
}

} // namespace

void test_custom(const char * model_path, const char * kv_type) {
    const Model model(model_path);
    test_ragged_heads(model, kv_type, "auto");
    test_ragged_heads(model, kv_type, "copies");
}
