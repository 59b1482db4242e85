// The cache of a real context: what compaction keeps, and what misuse is answered.
#include "cache/cache.h"
#include "cache_fixture.h"
#include "ggml-backend.h"
#include "llama-kv-cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace {

// Feed blocks and compact after each; returns what every head holds in the end, and the last logits.
std::pair<std::vector<Head>, std::vector<float>> run_blocks(const Model & model, const char * kv_type, const edgekv_policy & policy,
                                                            const char * staging) {
    const Staged       staged(staging);
    constexpr uint32_t budget = 40, n_block = 24, n_sink = 3, n_recent = 5;

    edgekv_cache_params needs = edgekv_cache_params_default();
    CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
    const Context context(model, kv_type, 2);
    const Cache   cache   = open_cache(context, needs);
    const auto    n_layer = cache->shape.n_layer;
    edgekv_shape  shape   = {};
    CHECK(edgekv_context_shape(context.ctx, &shape, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(shape.n_layer == n_layer && shape.staged == 0);
    llama_set_n_threads(context.ctx, 1, 1); // the cache keeps its two; llama.cpp's would spin on a busy machine
    CHECK(edgekv_cache_bytes(cache.get()) == edgekv_cache_estimate_bytes(&shape, &needs));

    const edgekv_protection protection = { sizeof(edgekv_protection), n_sink, n_recent, nullptr, 0 };
    for (uint32_t block = 1; block <= 6; ++block) {
        CHECK(feed(cache, n_block) == EDGEKV_STATUS_OK);
        const uint32_t    held   = edgekv_cache_n_cells(cache.get());
        const auto        before = read_all(cache);
        edgekv_compaction result;
        CHECK(compact(cache, policy, budget, protection, &result) == EDGEKV_STATUS_OK);

        const uint32_t kept = std::min(held, budget);
        CHECK(result.n_evicted == uint64_t(held - kept) * shape.n_head_total);
        CHECK(edgekv_cache_n_cells(cache.get()) == kept);
        CHECK(edgekv_cache_n_past(cache.get()) == static_cast<int32_t>(block * n_block));
        const auto after = read_all(cache);
        for (size_t i = 0; i < after.size(); ++i) {
            const auto & positions = after[i].positions;
            CHECK(std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<int32_t>()) == positions.end());
            CHECK(positions[n_sink - 1] == n_sink - 1);
            CHECK(positions[kept - n_recent] == static_cast<int32_t>(block * n_block - n_recent));
            check_survivors(before[i], after[i]);
        }
    }
    CHECK(edgekv_cache_bytes(cache.get()) == edgekv_cache_estimate_bytes(&shape, &needs));

    const auto heads = read_all(cache);
    CHECK(heads.size() > 1 && heads[0].positions != heads[1].positions); // each head chose for itself
    CHECK(feed(cache, 1) == EDGEKV_STATUS_OK);
    const float * logits = llama_get_logits_ith(context.ctx, -1);
    const int     n      = llama_vocab_n_tokens(llama_model_get_vocab(model.model));
    return { heads, std::vector<float>(logits, logits + n) };
}

void test_compaction(const Model & model, const char * kv_type) {
    std::vector<edgekv_policy> policies;
    for (const int32_t base : { EDGEKV_BASE_RANDOM, EDGEKV_BASE_H2O, EDGEKV_BASE_TOVA, EDGEKV_BASE_SNAPKV, EDGEKV_BASE_AHAKV }) {
        policies.push_back(policy_of(base));
    }
    policies.back().flags = EDGEKV_AHAKV_FLOOR | EDGEKV_AHAKV_STEP_GAIN | EDGEKV_AHAKV_VALUE_PRIOR; // every row
    policies.push_back(policy_of(EDGEKV_BASE_SNAPKV));
    policies.back().weigh  = EDGEKV_WEIGH_CAOTE;
    policies.push_back(policy_of(EDGEKV_BASE_KEYDIFF));
    policies.back().softmax  = 1;
    policies.back().weigh    = EDGEKV_WEIGH_FASTCAOTE;
    policies.back().critical = 1;
    policies.back().alpha    = 0.5;
    for (const edgekv_policy & policy : policies) {
        const auto direct = run_blocks(model, kv_type, policy, "auto");
        for (const char * staging : { "copies", "graphs" }) {
            const auto staged = run_blocks(model, kv_type, policy, staging);
            CHECK(direct.first == staged.first);
            CHECK(direct.second == staged.second);
        }
        CHECK(std::all_of(direct.second.begin(), direct.second.end(), [](float x) { return std::isfinite(x); }));
    }
}

// The cache scores its own rows as edgekv_score scores a copy of them: type and rotation are told rightly.
void test_scores_are_those_of_the_rows(const Model & model, const char * kv_type) {
    constexpr uint32_t budget = 20;
    for (const int32_t anchor : { EDGEKV_ANCHOR_UNIT_MEAN, EDGEKV_ANCHOR_MEAN, EDGEKV_ANCHOR_MEDIAN, EDGEKV_ANCHOR_PAIRWISE }) {
        const Context context(model, kv_type);
        const Cache   cache  = open_cache(context);
        const auto    policy = policy_of(EDGEKV_BASE_KEYDIFF, anchor);
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
        const Head         before = read_head(cache, 1, 1);
        std::vector<float> scores(before.positions.size());
        const edgekv_cells cells = { sizeof(edgekv_cells), &before.k_rows, nullptr, before.positions.data(), nullptr, nullptr, 1, 1 };
        CHECK(edgekv_score(&policy, &cells, nullptr, budget, scores.data(), nullptr, 0) == EDGEKV_STATUS_OK);
        const edgekv_protection protection = edgekv_protection_default();
        std::vector<uint32_t>   kept(budget);
        size_t                  n_kept = 0;
        CHECK(edgekv_select(scores.data(), before.positions.data(), scores.size(), budget, &protection, kept.data(), &n_kept,
                            nullptr, 0) == EDGEKV_STATUS_OK);
        CHECK(compact(cache, policy, budget) == EDGEKV_STATUS_OK);
        const Head after = read_head(cache, 1, 1);
        CHECK(n_kept == budget && std::equal(kept.begin(), kept.end(), after.positions.begin(), [&](uint32_t cell, int32_t p) {
            return before.positions[cell] == p;
        }));
    }
}

// What a read says of its rows: decoded and turned back they are those of an f16 cache, to the storage type's rounding.
// Only the first layer, whose keys and values do not depend on what a cache holds.
void test_rows_are_described(const Model & model, const char * kv_type) {
    std::vector<std::vector<float>> values[2]; // [is_key][type]
    const std::string               type = kv_type;
    for (const std::string & stored : { std::string("f16"), type, "f16/" + type, type + "/f16" }) {
        const Context context(model, stored.c_str());
        const Cache   cache = open_cache(context);
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
        const Head head = read_head(cache, 0, 1);
        for (const bool is_key : { false, true }) {
            const edgekv_rows & described = is_key ? head.k_rows : head.v_rows;
            const edgekv::Rows  rows(described);
            std::vector<float>  all(rows.n() * rows.dim());
            for (size_t i = 0; i < rows.n(); ++i) {
                rows.read(i, all.data() + i * rows.dim());
            }
            if (described.rotation > 0) {
                edgekv::rotate_hadamard(all.data(), static_cast<uint32_t>(all.size()), described.rotation);
            }
            values[is_key].push_back(all);
        }
    }
    for (const auto & by_type : values) {
        const auto & exact = by_type.front();
        for (const auto & stored : by_type) {
            double error = 0.0, size = 0.0;
            for (size_t i = 0; i < exact.size(); ++i) {
                error += std::pow(exact[i] - stored[i], 2);
                size += std::pow(exact[i], 2);
            }
            CHECK(size > 0.0 && std::sqrt(error / size) < 0.15); // q4_0 rounds to about 0.09; a wrong rotation is off by 1
        }
    }
}

// Cells beside a budget stay, those that a head has of them, and as many others do as without.
void test_cells_beside_a_budget_stay(const Model & model, const char * kv_type) {
    const Context context(model, kv_type);
    const Cache   cache = open_cache(context);
    CHECK(feed(cache, 30) == EDGEKV_STATUS_OK);
    const uint32_t           n_heads = cache->shape.n_head_total;
    const edgekv_policy      random  = policy_of(EDGEKV_BASE_RANDOM);
    const edgekv_protection  none    = edgekv_protection_default();
    edgekv_compaction_params params  = edgekv_compaction_params_default();
    std::vector<uint32_t>    counts;
    std::vector<int32_t>     beside;
    for (uint32_t head = 0; head < n_heads; ++head) { // none, or one more for each head, and one that no head has
        for (uint32_t i = 0; i < head; ++i) {
            beside.push_back(static_cast<int32_t>(2 * i + head % 2));
        }
        beside.push_back(100);
        counts.push_back(head + 1);
    }
    params.policy     = &random;
    params.protection = &none;
    params.budget     = 10;
    params.n_beside   = counts.data();
    params.beside     = beside.data();
    edgekv_compaction result;
    CHECK(edgekv_cache_compact(cache.get(), &params, &result, nullptr, 0) == EDGEKV_STATUS_OK);
    const int32_t * own = beside.data();
    for (uint32_t il = 0, head = 0; il < cache->shape.n_layer; ++il) {
        for (uint32_t g = 0; g < edgekv_cache_n_heads(cache.get(), il); ++g, ++head) {
            const auto held = read_head(cache, il, g).positions;
            CHECK(held.size() == 10 + head);
            CHECK(std::includes(held.begin(), held.end(), own, own + head));
            own += counts[head];
        }
    }
}

// A context has one cache at a time.
void test_a_second_cache(const Model & model, const char * kv_type) {
    const Context context(model, kv_type);
    Cache         first = open_cache(context);
    CHECK(feed(first, 20) == EDGEKV_STATUS_OK);
    const auto                before = read_all(first);
    const edgekv_cache_params params = edgekv_cache_params_default();
    edgekv_cache *            second = nullptr;
    char                      err[512];
    CHECK(edgekv_cache_open(context.ctx, &params, &second, err, sizeof(err)) == EDGEKV_STATUS_INVALID_STATE && second == nullptr);
    CHECK(std::strstr(err, "free that one first") != nullptr);
    CHECK(read_all(first) == before && feed(first, 3) == EDGEKV_STATUS_OK);
    first.reset();
    CHECK(feed(open_cache(context), 20) == EDGEKV_STATUS_OK);
}

// Whatever is refused leaves the cache as it was.
void test_misuse(const Model & model, const char * kv_type) {
    const Context context(model, kv_type);
    const Cache   cache = open_cache(context);
    CHECK(edgekv_cache_n_cells(cache.get()) == 0 && edgekv_cache_n_past(cache.get()) == 0);
    CHECK(feed(cache, 30) == EDGEKV_STATUS_OK);
    const auto        before = read_all(cache);
    edgekv_cache *    c      = cache.get();
    edgekv_policy     random = policy_of(EDGEKV_BASE_RANDOM);
    edgekv_protection none   = edgekv_protection_default();
    edgekv_compaction result;
    std::string       message;

    CHECK(feed(cache, n_ubatch + 1, &message) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(message == "33 tokens exceed the context's n_ubatch of 32; feed fewer at once");
    const int32_t     n_vocab     = llama_vocab_n_tokens(llama_model_get_vocab(model.model));
    const llama_token bad[2][2] = { { 5, n_vocab }, { -1, 5 } };
    for (const auto & tokens : bad) {
        CHECK(edgekv_cache_feed(c, tokens, 2, 1, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    CHECK(edgekv_cache_feed(c, bad[0], 0, 1, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_feed(c, nullptr, 1, 1, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);

    CHECK(compact(cache, random, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(compact(cache, random, 10, protecting(11, 0)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    edgekv_policy even = random;
    even.kernel        = 4;
    CHECK(compact(cache, even, 10) == EDGEKV_STATUS_INVALID_ARGUMENT);
    const edgekv_compaction_params good = { sizeof(edgekv_compaction_params), &random, &none, 10, 0, 0, 0, nullptr };
    edgekv_compaction_params no_policy = good, no_protection = good, no_counts = good, descending = good;
    no_policy.policy                   = nullptr;
    no_protection.protection           = nullptr;
    const std::vector<uint32_t> two(cache->shape.n_head_total, 2);
    std::vector<int32_t>        pairs(2 * two.size(), 7); // not two of a head
    no_counts.beside    = pairs.data();
    descending.beside   = pairs.data();
    descending.n_beside = two.data();
    for (const edgekv_compaction_params & wrong : { no_policy, no_protection, no_counts, descending }) {
        CHECK(edgekv_cache_compact(c, &wrong, &result, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    CHECK(edgekv_cache_compact(c, nullptr, &result, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_compact(c, &good, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);

    // what the cache was not opened for
    for (const int32_t base : { EDGEKV_BASE_H2O, EDGEKV_BASE_TOVA, EDGEKV_BASE_SNAPKV, EDGEKV_BASE_AHAKV }) {
        CHECK(compact(cache, policy_of(base), 10) == EDGEKV_STATUS_INVALID_STATE);
    }
    edgekv_policy critical = random;
    critical.critical      = 1;
    CHECK(compact(cache, critical, 10) == EDGEKV_STATUS_INVALID_STATE);
    const llama_token asked = 5;
    CHECK(edgekv_cache_probe(c, &asked, 1, nullptr, 0, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    uint32_t n_rows = 1;
    float    query[4096], scale;
    int32_t  row;
    CHECK(edgekv_cache_queries(c, 0, 0, query, &row, &n_rows, &scale, nullptr, 0) == EDGEKV_STATUS_INVALID_STATE);

    const uint32_t    n_layer = cache->shape.n_layer;
    int32_t           positions[30];
    std::vector<char> rows(1 << 20);
    edgekv_rows       described = edgekv_rows_default();
    CHECK(edgekv_cache_positions(c, n_layer, 0, positions, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_positions(c, 0, 99, positions, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_positions(c, 0, 0, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_read(c, 0, 99, 0, rows.data(), rows.size(), &described, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_read(c, 0, 0, 0, rows.data(), before[0].k.size() - 1, &described, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_read(c, 0, 0, 0, nullptr, rows.size(), &described, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_read(c, 0, 0, 0, rows.data(), rows.size(), nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);

    CHECK(edgekv_cache_n_past(c) == 30);
    CHECK(read_all(cache) == before);

    // full: nothing is fed, and room is made by compacting
    while (edgekv_cache_n_cells(c) + 30 <= cache->shape.n_cells) {
        CHECK(feed(cache, 30) == EDGEKV_STATUS_OK);
    }
    const auto full = read_all(cache);
    CHECK(feed(cache, 30, &message) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(message.find("free cells; compact first") != std::string::npos);
    CHECK(read_all(cache) == full);
    CHECK(compact(cache, random, 16) == EDGEKV_STATUS_OK);
    CHECK(feed(cache, 30) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_n_cells(c) == 46);

    // a budget that nothing exceeds changes nothing
    const auto kept = read_all(cache);
    CHECK(compact(cache, random, 46, protecting(0, 0), &result) == EDGEKV_STATUS_OK && result.n_evicted == 0);
    CHECK(compact(cache, random, 1000) == EDGEKV_STATUS_OK);
    CHECK(read_all(cache) == kept);

    CHECK(edgekv_cache_clear(c, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_n_cells(c) == 0 && edgekv_cache_n_past(c) == 0);
    CHECK(feed(cache, 30) == EDGEKV_STATUS_OK);
    CHECK(read_all(cache) == before); // as the first time
}

void test_null_handles(const Model & model, const char * kv_type) {
    edgekv_cache_free(nullptr);
    CHECK(edgekv_cache_bytes(nullptr) == 0 && edgekv_cache_estimate_bytes(nullptr, nullptr) == 0);
    CHECK(edgekv_cache_n_cells(nullptr) == 0 && edgekv_cache_n_past(nullptr) == 0);

    const Context             context(model, kv_type);
    const edgekv_cache_params params = edgekv_cache_params_default();
    const llama_token         token  = 1;
    edgekv_cache *            cache  = nullptr;
    char                      err[64];
    CHECK(edgekv_cache_open(nullptr, &params, &cache, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(std::strstr(err, "NULL") != nullptr);
    CHECK(edgekv_cache_open(context.ctx, nullptr, &cache, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_open(context.ctx, &params, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(cache == nullptr);
    CHECK(edgekv_cache_clear(nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_feed(nullptr, &token, 1, 0, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_context_shape(nullptr, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_context_memory(context.ctx, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
}

// Whoever feeds or changes the context beside its cache is found out by the next feed, before it computes anything.
void test_foreign_changes(const Model & model, const char * kv_type) {
    llama_token tokens[] = { 1, 2, 3 };
    const auto  decode   = [&](const Context & context) { CHECK(llama_decode(context.ctx, llama_batch_get_one(tokens, 3)) == 0); };
    const auto  clear    = [](const Context & context) { llama_memory_clear(llama_get_memory(context.ctx), false); };

    for (const bool cleared : { false, true }) {
        for (const bool decoded : { false, true }) {
            const Context context(model, kv_type);
            const Cache   cache = open_cache(context);
            CHECK(feed(cache, 20) == EDGEKV_STATUS_OK);
            CHECK(compact(cache, policy_of(EDGEKV_BASE_RANDOM), 12) == EDGEKV_STATUS_OK);
            if (cleared) {
                clear(context);
            }
            if (decoded) {
                decode(context);
            }
            const bool changed  = cleared || decoded;
            const auto expected = changed ? EDGEKV_STATUS_INVALID_STATE : EDGEKV_STATUS_OK;
            const auto before   = read_all(cache);
            CHECK(feed(cache, 3) == expected);
            CHECK(feed(cache, 3) == expected); // nor does it heal by trying again
            if (changed) {
                CHECK(edgekv_cache_n_cells(cache.get()) == 12 && edgekv_cache_n_past(cache.get()) == 20);
                CHECK(read_all(cache) == before);
                CHECK(edgekv_cache_clear(cache.get(), nullptr, 0) == EDGEKV_STATUS_OK);
                CHECK(feed(cache, 3) == EDGEKV_STATUS_OK);
            }
        }
    }
}

// What the cells of all heads carry, by head and position.
using Carried = std::vector<std::tuple<uint32_t, uint32_t, int32_t, float, float>>;

Carried carried_by(const edgekv_cache & cache) {
    Carried carried;
    for (uint32_t layer = 0; layer < cache.shape.n_layer; ++layer) {
        for (uint32_t g = 0; g < cache.n_heads(layer); ++g) {
            const edgekv::HeadView head = cache.cells(layer, g);
            std::for_each(head.order, head.order + head.n, [&](uint32_t cell) {
                carried.emplace_back(layer, g, head.position[cell], head.accumulated[cell], head.wo_norm[cell]);
            });
        }
    }
    return carried;
}

// It goes with a cell when a policy evicts that neither reads nor changes it.
void test_what_cells_carry(const Model & model, const char * kv_type) {
    const edgekv_policy h2o      = policy_of(EDGEKV_BASE_H2O);
    edgekv_policy       critical = policy_of(EDGEKV_BASE_KEYDIFF);
    critical.critical            = 1;
    critical.alpha               = 0.5;
    critical.epsilon             = 1e-4;
    for (const char * staging : { "auto", "copies", "graphs" }) {
        const Staged staged(staging);
        edgekv_cache_params needs = edgekv_cache_params_default();
        for (const edgekv_policy & policy : { h2o, critical }) {
            CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
        }
        const Context context(model, kv_type);
        const Cache   cache = open_cache(context, needs);
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK && compact(cache, h2o, 28) == EDGEKV_STATUS_OK);
        CHECK(compact(cache, critical, 24) == EDGEKV_STATUS_OK && feed(cache, 8) == EDGEKV_STATUS_OK);
        const Carried before = carried_by(*cache);
        CHECK(std::get<3>(before.front()) > 0.0f && std::get<4>(before.front()) > 0.0f);
        CHECK(compact(cache, policy_of(EDGEKV_BASE_KEYDIFF), 16) == EDGEKV_STATUS_OK);
        const Carried after = carried_by(*cache);
        CHECK(after.size() == 16 * cache->shape.n_head_total);
        CHECK(std::includes(before.begin(), before.end(), after.begin(), after.end()));
    }
}

// A key that is NaN, in the last layer: no head of any layer changes.
void test_keys_that_are_not_finite(const Model & model, const char * kv_type) {
    for (const char * staging : { "auto", "copies" }) {
        const Staged  staged(staging);
        const Context context(model, kv_type);
        const Cache   cache = open_cache(context);
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);

        // two bytes that are a NaN of f16 and a NaN scale of q8_0 and q4_0
        const uint16_t nan = 0x7e00;
        ggml_tensor *  k   = edgekv::memory_of(context.ctx).flat->layers().back().k;
        ggml_backend_tensor_set(k, &nan, 9 * k->nb[1], sizeof(nan));
        const auto before = read_all(cache);
        for (const int32_t anchor : { EDGEKV_ANCHOR_UNIT_MEAN, EDGEKV_ANCHOR_MEDIAN }) {
            CHECK(compact(cache, policy_of(EDGEKV_BASE_KEYDIFF, anchor), 16) == EDGEKV_STATUS_NOT_FINITE);
            CHECK(edgekv_cache_n_cells(cache.get()) == n_ubatch);
            CHECK(read_all(cache) == before);
        }
        // sinks need no keys, and the cell goes with them
        CHECK(compact(cache, policy_of(EDGEKV_BASE_SINK), 16) == EDGEKV_STATUS_OK);
        CHECK(compact(cache, policy_of(EDGEKV_BASE_KEYDIFF), 8) == EDGEKV_STATUS_OK);
    }
}

} // namespace

void test_cache(const char * model_path, const char * kv_type) {
    const Model model(model_path);
    test_compaction(model, kv_type);
    test_scores_are_those_of_the_rows(model, kv_type);
    test_rows_are_described(model, kv_type);
    test_cells_beside_a_budget_stay(model, kv_type);
    test_a_second_cache(model, kv_type);
    test_misuse(model, kv_type);
    test_null_handles(model, kv_type);
    test_foreign_changes(model, kv_type);
    test_what_cells_carry(model, kv_type);
    test_keys_that_are_not_finite(model, kv_type);
}
