// Budgets that heads and layers share.
#include "check.h"
#include "edgekv.h"
#include "evict/allot.h"
#include "failing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using Budgets = std::vector<uint32_t>;

static edgekv_policy sharing_policy(double safeguard, double pyramid = 0.0) {
    edgekv_policy policy = edgekv_policy_default();
    policy.base          = EDGEKV_BASE_TOVA;
    policy.kernel        = 1;
    policy.spread        = EDGEKV_SPREAD_LAYER;
    policy.safeguard     = safeguard;
    policy.pyramid       = pyramid;
    return policy;
}

struct Heads {
    std::vector<std::vector<float>>   scores;
    std::vector<std::vector<int32_t>> positions;

    // one head more, of cells at positions 0, 1, ...
    void add(const std::vector<float> & head) {
        scores.push_back(head);
        positions.emplace_back(head.size());
        std::iota(positions.back().begin(), positions.back().end(), 0);
    }

    std::vector<edgekv_scored> scored() const {
        std::vector<edgekv_scored> heads;
        for (size_t g = 0; g < scores.size(); ++g) {
            heads.push_back({ sizeof(edgekv_scored), scores[g].data(), positions[g].data(), scores[g].size() });
        }
        return heads;
    }
};

struct Allotted {
    edgekv_status status;
    Budgets       budgets;
    std::string   message;
};

static Allotted allot_to(const Heads & heads, uint32_t budget, double safeguard, const edgekv_protection & protection = edgekv_protection_default(),
                         uint32_t largest = UINT32_MAX) {
    const edgekv_policy policy   = sharing_policy(safeguard);
    const auto          scored   = heads.scored();
    char                err[256] = "";
    Budgets             budgets(scored.size(), 77);
    const edgekv_status status = edgekv_allot(&policy, scored.data(), scored.size(), &protection, budget, largest, budgets.data(),
                                              err, sizeof(err));
    return { status, budgets, err };
}

static void test_best_of_all_heads() {
    Heads heads;
    heads.add({ 9, 8, 7, 6, 1 });
    heads.add({ 5, 4, 1, 1, 1 });
    heads.add({ 3, 2, 1, 1, 1 });
    CHECK(allot_to(heads, 2, 0.0).budgets == (Budgets{ 4, 2, 0 }));
    CHECK(allot_to(heads, 2, 0.3).budgets == (Budgets{ 3, 2, 1 })); // 3.4, 2, 0.6
    CHECK(allot_to(heads, 2, 1.0).budgets == (Budgets{ 2, 2, 2 }));
    CHECK(allot_to(heads, 2, 0.0, protecting(0, 0), 2).budgets == (Budgets{ 2, 2, 2 }));
    CHECK(allot_to(heads, 2, 0.0, protecting(0, 2)).budgets == (Budgets{ 2, 2, 2 }));
    CHECK(allot_to(heads, 2, 0.0, protecting(1, 0)).budgets == (Budgets{ 4, 1, 1 }));
    CHECK(allot_to(heads, 5, 0.0, protecting(5, 0)).budgets == (Budgets{ 5, 5, 5 }));
    CHECK(allot_to(heads, 9, 0.0, protecting(0, 0), 9).budgets == (Budgets{ 5, 5, 5 }));
    CHECK(allot_to(heads, 0, 0.0).budgets == (Budgets{ 0, 0, 0 }));
}

static void test_tied_scores_of_heads() {
    Heads heads;
    heads.add({ 7, 7, 7 });
    heads.add({ 7, 7, 7 });
    CHECK(allot_to(heads, 1, 0.0).budgets == (Budgets{ 1, 1 })); // both of position 2
    heads.positions[1] = { 3, 1, 4 };
    CHECK(allot_to(heads, 1, 0.0).budgets == (Budgets{ 0, 2 }));
    heads.scores[0] = { 0.0f, -0.0f, 0.0f };
    heads.scores[1] = { -0.0f, 0.0f, -0.0f };
    CHECK(allot_to(heads, 1, 0.0).budgets == (Budgets{ 0, 2 }));
    heads.positions[1] = { 0, 1, 2 };
    heads.add({ 1, 1, -1 });
    CHECK(allot_to(heads, 1, 0.0).budgets == (Budgets{ 1, 0, 2 })); // of the zeros that of position 2 and the first head
}

// However many cells tie, counting them takes memory for the heads alone.
static void test_memory_of_tied_scores() {
    const auto peak = [](size_t n_cells, size_t n_heads) {
        const std::vector<float>    scores(n_cells, 0.5f);
        std::vector<int32_t>        positions(n_cells);
        std::vector<uint32_t>       order(n_cells);
        std::vector<float>          line(n_cells * n_heads);
        Budgets                     budgets(n_heads);
        std::iota(positions.begin(), positions.end(), 0);
        std::iota(order.begin(), order.end(), 0u);
        const std::vector<edgekv::Ranked> heads(n_heads, { scores.data(), positions.data(), order.data(), n_cells });
        failing::begin(-1);
        edgekv::allot(heads.data(), n_heads, {}, static_cast<uint32_t>(n_cells / 2), UINT32_MAX, 0.2, line.data(), budgets.data());
        failing::end();
        CHECK(budgets == Budgets(n_heads, n_cells / 2));
        return failing::bytes();
    };
    CHECK(peak(64, 4) == peak(4096, 4));
    CHECK(!failing::works || peak(64, 4) > 0);
}

// Sums are exact, and no head gets more than it holds or may hold, or less than what is protected.
static void test_allotted_sums() {
    std::mt19937 engine(5);
    const auto   below = [&](uint32_t n) { return static_cast<uint32_t>(engine() % n); };
    for (uint32_t round = 0; round < 300; ++round) {
        Heads          heads;
        const uint32_t n_heads  = 1 + below(40);
        const uint32_t n_levels = 1 + below(50);
        size_t         n_room   = 0;
        const uint32_t budget   = 4 + below(30);
        const uint32_t largest  = budget + below(20);
        for (uint32_t g = 0; g < n_heads; ++g) {
            std::vector<float> scores(below(70));
            std::generate(scores.begin(), scores.end(), [&] { return static_cast<float>(below(n_levels)); });
            heads.add(scores);
            std::shuffle(heads.positions.back().begin(), heads.positions.back().end(), engine);
            n_room += std::min<size_t>(largest, scores.size());
        }
        const Allotted found = allot_to(heads, budget, 0.1 * below(11), protecting(2, 2), largest);
        CHECK(found.status == EDGEKV_STATUS_OK);
        CHECK(std::accumulate(found.budgets.begin(), found.budgets.end(), size_t(0)) == std::min<size_t>(n_room, n_heads * budget));
        for (uint32_t g = 0; g < n_heads; ++g) {
            CHECK(found.budgets[g] <= std::min<size_t>(largest, heads.scores[g].size()));
            CHECK(found.budgets[g] >= std::min<size_t>(4, heads.scores[g].size()));
        }
    }
}

static void test_heads_that_cannot_share() {
    Heads heads;
    heads.add({ 1, 2, 3, 4 });
    heads.add({ 1, 2, 3, 4 });
    const Allotted crowded = allot_to(heads, 2, 0.2, protecting(2, 1));
    CHECK(crowded.status == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(crowded.message == "3 protected cells exceed the budget of 2; raise the budget or protect fewer");
    CHECK(crowded.budgets == (Budgets{ 77, 77 })); // nothing was written
    CHECK(allot_to(heads, 2, 0.2, protecting(0, 0), 1).message == "largest=1 is less than the budget of 2; raise it or lower the budget");
    CHECK(allot_to(heads, 2, 1.1).status == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(allot_to(heads, 2, 0.2, protecting(0, 0, nullptr, 1)).status == EDGEKV_STATUS_INVALID_ARGUMENT);
    for (const float bad : { std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY }) {
        heads.scores[1][2] = bad;
        for (const uint32_t budget : { 2u, 4u }) {
            const Allotted found = allot_to(heads, budget, 0.2);
            CHECK(found.status == EDGEKV_STATUS_NOT_FINITE);
            CHECK(found.message.find("position 2 ") != std::string::npos);
        }
    }

    const edgekv_policy     policy     = sharing_policy(0.2);
    const edgekv_protection protection = edgekv_protection_default();
    const auto              scored     = heads.scored();
    const edgekv_scored     nowhere    = { sizeof(edgekv_scored), nullptr, nullptr, 1 };
    Budgets                 budgets(2);
    CHECK(edgekv_allot(nullptr, scored.data(), 2, &protection, 4, 4, budgets.data(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_allot(&policy, nullptr, 2, &protection, 4, 4, budgets.data(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_allot(&policy, &nowhere, 1, &protection, 4, 4, budgets.data(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_allot(&policy, scored.data(), 2, nullptr, 4, 4, budgets.data(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_allot(&policy, scored.data(), 2, &protection, 4, 4, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
}

static void test_layers() {
    const auto split = [](double beta, uint32_t n_layer, uint32_t budget, uint32_t n_protected, uint32_t largest = UINT32_MAX) {
        const edgekv_policy policy = sharing_policy(0.2, beta);
        Budgets             budgets(n_layer);
        CHECK(edgekv_layer_budgets(&policy, n_layer, budget, n_protected, largest, budgets.data(), nullptr, 0) == EDGEKV_STATUS_OK);
        return budgets;
    };
    CHECK(split(20.0, 5, 512, 32) == (Budgets{ 968, 740, 512, 284, 56 }));
    CHECK(split(20.0, 5, 512, 32, 800) == (Budgets{ 800, 782, 554, 326, 98 }));
    CHECK(split(20.0, 4, 10, 0) == (Budgets{ 20, 13, 7, 0 }));
    CHECK(split(20.0, 1, 512, 32) == (Budgets{ 512 }));
    CHECK(split(0.0, 3, 512, 32) == (Budgets{ 512, 512, 512 }));
    CHECK(split(1.0, 3, 512, 32) == (Budgets{ 512, 512, 512 }));
    CHECK(split(20.0, 3, 512, 32, 512) == (Budgets{ 512, 512, 512 }));
    CHECK(split(20.0, 3, 512, 512) == (Budgets{ 512, 512, 512 }));

    const edgekv_policy policy    = sharing_policy(0.2, 20.0);
    const edgekv_policy too_small = sharing_policy(0.2, 0.5);
    Budgets             budgets(3);
    CHECK(edgekv_layer_budgets(&policy, 3, 32, 33, 99, budgets.data(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_layer_budgets(&policy, 3, 32, 8, 31, budgets.data(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_layer_budgets(&too_small, 3, 32, 8, 99, budgets.data(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_layer_budgets(nullptr, 3, 32, 8, 99, budgets.data(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_layer_budgets(&policy, 3, 32, 8, 99, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
}

void test_allot() {
    test_best_of_all_heads();
    test_tied_scores_of_heads();
    test_memory_of_tied_scores();
    test_allotted_sums();
    test_heads_that_cannot_share();
    test_layers();
}
