// unit [MODEL [KV_TYPE [failures]]]: the kernels on plain arrays (unit_allot.cpp, unit_attention.cpp, unit_kernels.cpp, unit_products.cpp, unit_rope.cpp and
// unit_matrix_rows.cpp too) and,
// given a model, its cache (unit_allowed.cpp, unit_cache.cpp, unit_failures.cpp, unit_ragged.cpp, unit_reposition.cpp, unit_slots.cpp, unit_snapshot.cpp).
#include "check.h"
#include "edgekv.h"
#include "evict/choose.h"
#include "evict/team.h"
#include "ggml.h"
#include "hooks/status.h"
#include "plan/open.h"
#include "random_values.h"
#include "rows/rows.h"
#include "score/score.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#if defined(__GLIBC__)
#    include <pthread.h>
#endif

using namespace edgekv;

void test_allot();
void test_columns();
void test_allowed(const char * model_path, const char * kv_type);
void test_cache(const char * model_path, const char * kv_type);
void test_custom(const char * model_path, const char * kv_type);
void test_failures(const char * model_path, const char * kv_type);
void test_graphs(const char * model_path, const char * kv_type);
void test_host(const char * model_path, const char * kv_type);
void test_plan(const char * model_path);
void test_kernels();
void test_pools(const char * model_path, const char * kv_type);
void test_columns_alone();
void test_experts();
void test_products();
void test_pools_of_rows();
void test_starts_of_heads();
void test_readers_of_rows();
void test_versions_of_rows();
void test_ragged(const char * model_path, const char * kv_type);
void test_reposition(const char * model_path, const char * kv_type);
void test_rope();
void test_matrix_rows();
void test_pages();
void test_slots(const char * model_path, const char * kv_type);
void test_snapshot(const char * model_path, const char * kv_type);
void test_parallel_reads(const char * model_path);
void test_streamed_weights(const char * model_path);
void test_weights_file(const char * model_path);

template <typename Body> static edgekv_status status_of(const Body & body) { return guard(nullptr, 0, body); }

// ---- rows ----

// Two rows of two blocks, the second row some bytes after the first; block b of row i has the scale 2^(i + b).
static std::vector<uint8_t> quantised_rows(size_t block_bytes, size_t stride) {
    std::vector<uint8_t> data(2 * stride, 0xFF);
    for (size_t i = 0; i < 2; ++i) {
        for (size_t b = 0; b < 2; ++b) {
            uint8_t *         block = data.data() + i * stride + b * block_bytes;
            const ggml_fp16_t scale = ggml_fp32_to_fp16(static_cast<float>(1 << (i + b)));
            std::memcpy(block, &scale, sizeof(scale));
            for (size_t k = sizeof(scale); k < block_bytes; ++k) {
                block[k] = static_cast<uint8_t>(37 * k + 11 * i + b);
            }
        }
    }
    return data;
}

static void test_rows_of_floats() {
    const auto         values = random_values(3 * 40);
    std::vector<float> row(33);

    // rows of 33 within rows of 40
    const Rows f32({ sizeof(edgekv_rows), GGML_TYPE_F32, values.data(), 3, 40 * sizeof(float), 33, 0 });
    for (size_t i = 0; i < 3; ++i) {
        f32.read(i, row.data());
        CHECK(std::equal(row.begin(), row.end(), values.data() + 40 * i));
    }

    std::vector<ggml_fp16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), ggml_fp32_to_fp16);
    const Rows f16({ sizeof(edgekv_rows), GGML_TYPE_F16, halves.data(), 3, 40 * sizeof(ggml_fp16_t), 33, 0 });
    for (size_t i = 0; i < 3; ++i) {
        f16.read(i, row.data());
        for (size_t k = 0; k < row.size(); ++k) {
            CHECK(row[k] == ggml_fp16_to_fp32(halves[40 * i + k]));
        }
    }
}

static void test_rows_of_blocks() {
    std::vector<float> row(64);

    const size_t q8_bytes  = 2 + 32; // scale, 32 bytes
    const size_t q8_stride = 2 * q8_bytes + 6;
    const auto   q8        = quantised_rows(q8_bytes, q8_stride);
    const Rows   q8_rows({ sizeof(edgekv_rows), GGML_TYPE_Q8_0, q8.data(), 2, q8_stride, 64, 0 });
    const size_t q4_bytes  = 2 + 16; // scale, 16 low and 16 high halves of bytes
    const size_t q4_stride = 2 * q4_bytes + 6;
    const auto   q4        = quantised_rows(q4_bytes, q4_stride);
    const Rows   q4_rows({ sizeof(edgekv_rows), GGML_TYPE_Q4_0, q4.data(), 2, q4_stride, 64, 0 });
    for (size_t i = 0; i < 2; ++i) {
        q8_rows.read(i, row.data());
        for (size_t k = 0; k < 64; ++k) {
            const uint8_t byte = q8[i * q8_stride + k / 32 * q8_bytes + 2 + k % 32];
            CHECK(row[k] == static_cast<float>(1 << (i + k / 32)) * static_cast<int8_t>(byte));
        }
        q4_rows.read(i, row.data());
        for (size_t k = 0; k < 64; ++k) {
            const uint8_t byte = q4[i * q4_stride + k / 32 * q4_bytes + 2 + k % 16];
            const int     half = k % 32 < 16 ? byte & 15 : byte >> 4;
            CHECK(row[k] == static_cast<float>(1 << (i + k / 32)) * static_cast<float>(half - 8));
        }
    }
}

static void test_rows_that_cannot_be() {
    const std::vector<float> data(256);
    const auto status = [&](const void * rows, int32_t type, uint32_t dim, uint64_t n, uint64_t stride, uint32_t rotation) {
        return status_of([&] { Rows({ sizeof(edgekv_rows), type, rows, n, stride, dim, rotation }); });
    };
    CHECK(status(data.data(), GGML_TYPE_F32, 32, 2, 128, 0) == EDGEKV_STATUS_OK);
    CHECK(status(data.data(), GGML_TYPE_F32, 128, 1, 0, 64) == EDGEKV_STATUS_OK); // one row needs no stride
    CHECK(status(nullptr, GGML_TYPE_F32, 32, 0, 0, 0) == EDGEKV_STATUS_OK);       // no rows need no data

    CHECK(status(nullptr, GGML_TYPE_F32, 32, 1, 128, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(data.data(), GGML_TYPE_Q8_1, 32, 2, 128, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(data.data(), -1, 32, 2, 128, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(data.data(), GGML_TYPE_COUNT, 32, 2, 128, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(data.data(), GGML_TYPE_F32, 0, 2, 128, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(data.data(), GGML_TYPE_Q8_0, 33, 2, 128, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(data.data(), GGML_TYPE_F32, 32, 2, 127, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(data.data(), GGML_TYPE_F32, 96, 2, 384, 48) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(data.data(), GGML_TYPE_F32, 96, 2, 384, 64) == EDGEKV_STATUS_INVALID_ARGUMENT);
}

static void test_hadamard() {
    for (const uint32_t run : { 1u, 64u, 128u }) {
        const auto before = random_values(256);
        auto       row    = before;
        rotate_hadamard(row.data(), 256, run);
        if (run > 1) {
            CHECK(row != before);
        }
        rotate_hadamard(row.data(), 256, run);
        for (size_t i = 0; i < row.size(); ++i) {
            CHECK(std::fabs(row[i] - before[i]) < 1e-5f);
        }
    }
    // an impulse spreads over its run, and no further
    std::vector<float> impulse(192, 0.0f);
    impulse[64 + 5] = 8.0f;
    rotate_hadamard(impulse.data(), 192, 64);
    for (size_t i = 0; i < impulse.size(); ++i) {
        CHECK(std::fabs(impulse[i]) == (i / 64 == 1 ? 1.0f : 0.0f));
    }
}

// ---- selection ----

struct Kept {
    edgekv_status         status;
    std::vector<uint32_t> cells;
    std::string           message;
};

static Kept kept_of(const std::vector<float> & scores, const std::vector<int32_t> & positions, size_t budget,
                    const edgekv_protection & protection = edgekv_protection_default()) {
    std::vector<uint32_t> kept(std::min(scores.size(), budget));
    size_t                n_kept    = 0;
    char                  err[256]  = "";
    const edgekv_status   status    = edgekv_select(scores.data(), positions.data(), scores.size(), budget, &protection,
                                                    kept.data(), &n_kept, err, sizeof(err));
    kept.resize(status == EDGEKV_STATUS_OK ? n_kept : 0);
    return { status, kept, err };
}

using Cells32 = std::vector<uint32_t>;

static void test_selection() {
    const std::vector<int32_t> positions = { 30, 10, 50, 20, 40 };
    const std::vector<float>   scores    = { 1, 5, 3, 4, 2 };

    // the best, ascending by position
    CHECK(kept_of(scores, positions, 3).cells == (Cells32{ 1, 3, 2 }));
    CHECK(kept_of(scores, positions, 5).cells == (Cells32{ 1, 3, 0, 4, 2 }));
    CHECK(kept_of(scores, positions, 9).cells == (Cells32{ 1, 3, 0, 4, 2 }));
    CHECK(kept_of(scores, positions, 0).cells.empty());

    // ties keep the later positions: 40 and 50 lie in cells 4 and 2
    CHECK(kept_of({ 7, 7, 7, 7, 7 }, positions, 2).cells == (Cells32{ 4, 2 }));
    CHECK(kept_of({ 7, 9, 7, 7, 0 }, positions, 3).cells == (Cells32{ 1, 0, 2 }));
    CHECK(kept_of({ 0.0f, -0.0f, 0.0f, -0.0f, -0.0f }, positions, 2).cells == (Cells32{ 4, 2 }));
}

static void test_protection() {
    const std::vector<int32_t> positions = { 30, 10, 50, 20, 40 };
    const std::vector<float>   scores    = { 1, 5, 3, 4, 2 };
    const int32_t              pinned[]  = { 29, 31, 40, 40 };

    CHECK(kept_of(scores, positions, 2, protecting(31, 0)).status == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(kept_of(scores, positions, 3, protecting(31, 0)).cells == (Cells32{ 1, 3, 0 }));
    CHECK(kept_of(scores, positions, 3, protecting(0, 2)).cells == (Cells32{ 1, 4, 2 }));
    CHECK(kept_of(scores, positions, 2, protecting(0, 0, pinned, 2)).cells == (Cells32{ 1, 0 })); // [40, 40) is empty
    CHECK(kept_of(scores, positions, 3, protecting(0, 1, pinned, 2)).cells == (Cells32{ 1, 0, 2 }));
    CHECK(kept_of(scores, positions, 5, protecting(0, 1000)).status == EDGEKV_STATUS_OK);

    const Kept over = kept_of(scores, positions, 3, protecting(0, 4));
    CHECK(over.status == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(over.message == "4 protected cells exceed the budget of 3; raise the budget or protect fewer");

    const int32_t backwards[] = { 5, 4 };
    CHECK(kept_of(scores, positions, 3, protecting(0, 0, backwards, 1)).status == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(kept_of(scores, positions, 3, protecting(0, 0, nullptr, 1)).status == EDGEKV_STATUS_INVALID_ARGUMENT);
}

static void test_scores_that_are_not_finite() {
    for (const float bad : { std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY }) {
        for (const size_t budget : { 1, 2, 3 }) {
            const Kept kept = kept_of({ 1, bad, 2 }, { 7, 8, 9 }, budget, protecting(0, 1));
            CHECK(kept.status == EDGEKV_STATUS_NOT_FINITE);
            CHECK(kept.message.find("position 8 ") != std::string::npos);
        }
    }
}

// ---- scores ----

static std::vector<float> scores_of(const edgekv_policy & policy, const std::vector<float> & keys,
                                    const std::vector<int32_t> & positions) {
    const uint32_t    dim  = static_cast<uint32_t>(keys.size() / positions.size());
    const edgekv_rows rows = { sizeof(edgekv_rows), GGML_TYPE_F32, keys.data(), positions.size(), dim * sizeof(float), dim, 0 };

    const edgekv_cells cells = { sizeof(edgekv_cells), &rows, nullptr, positions.data(), nullptr, nullptr, 0, 0 };
    std::vector<float> scores(positions.size());
    CHECK(edgekv_score(&policy, &cells, nullptr, 0, scores.data(), nullptr, 0) == EDGEKV_STATUS_OK);
    return scores;
}

static edgekv_policy policy_of(int32_t base, uint32_t kernel = 1, int32_t pool = EDGEKV_POOL_AVG) {
    edgekv_policy policy = edgekv_policy_default();
    policy.base          = base;
    policy.kernel        = kernel;
    policy.pool          = pool;
    policy.rows          = 2;
    return policy;
}

static void test_pooling() {
    // sink scores are the positions, so the pooled ones are known; in position order the cells are 1, 3, 0, 2
    const std::vector<int32_t> positions = { 30, 0, 60, 12 };
    const std::vector<float>   keys(4 * 32);
    using Scores = std::vector<float>;

    CHECK(scores_of(policy_of(EDGEKV_BASE_SINK), keys, positions) == (Scores{ 30, 0, 60, 12 }));
    CHECK(scores_of(policy_of(EDGEKV_BASE_SINK, 3), keys, positions) == (Scores{ 34, 6, 45, 14 }));
    CHECK(scores_of(policy_of(EDGEKV_BASE_SINK, 3, EDGEKV_POOL_MAX), keys, positions) == (Scores{ 60, 12, 60, 30 }));
    CHECK(scores_of(policy_of(EDGEKV_BASE_SINK, 99), keys, positions) == Scores(4, 25.5f));
    CHECK(scores_of(policy_of(EDGEKV_BASE_SINK, 99, EDGEKV_POOL_MAX), keys, positions) == Scores(4, 60.0f));
}

// A maximum must not hide a score that is not finite.
static void test_pooling_of_nan() {
    auto keys    = random_values(20 * 32);
    keys[7 * 32] = std::numeric_limits<float>::quiet_NaN();
    std::vector<int32_t> positions(20);
    for (int32_t i = 0; i < 20; ++i) {
        positions[i] = i;
    }
    for (const int32_t pool : { EDGEKV_POOL_AVG, EDGEKV_POOL_MAX }) {
        edgekv_policy policy = policy_of(EDGEKV_BASE_KEYDIFF, 3, pool);
        policy.anchor        = EDGEKV_ANCHOR_MEDIAN;
        CHECK(!std::isfinite(scores_of(policy, keys, positions)[6]));
        CHECK(!std::isfinite(scores_of(policy, keys, positions)[7]));
        CHECK(!std::isfinite(scores_of(policy, keys, positions)[8]));
    }
}

// A thread's scratch serves heads of any size up to its own, and never grows.
static void test_scratch() {
    const size_t   n_max = 100;
    const uint32_t dim   = 64;
    Scratch        kept;

    ScratchSize size{ n_max, dim };
    size.n_rows   = 3;
    size.n_window = 2 * size.n_rows;
    kept.reserve(size);
    CHECK(kept.held() == Scratch::bytes(size));
    const auto           queries   = random_values(size.n_window * dim);
    const int32_t        asked[]   = { 50, 60, 70 };
    const edgekv_queries window    = { sizeof(edgekv_queries), queries.data(), asked, 2, 3, dim, 71, 0.125f, 0.0f, nullptr };

    for (const size_t n : { n_max, size_t(3), size_t(1), size_t(57), size_t(0), n_max }) {
        const auto            keys = random_values(n * dim);
        std::vector<int32_t>  positions(n);
        std::vector<uint32_t> order(n);
        for (size_t i = 0; i < n; ++i) {
            positions[i]     = static_cast<int32_t>(n - i); // the newest first
            order[n - 1 - i] = static_cast<uint32_t>(i);
        }
        const Rows rows({ sizeof(edgekv_rows), GGML_TYPE_F32, keys.data(), n, dim * sizeof(float), dim, 0 });
        const Cells cells{ rows, &rows, positions.data(), order.data(), nullptr, nullptr, nullptr, nullptr, &window, 1, 2 };
        for (int32_t base = EDGEKV_BASE_SINK; base < EDGEKV_BASE_CUSTOM; ++base) {
            for (const int32_t anchor : { EDGEKV_ANCHOR_UNIT_MEAN, EDGEKV_ANCHOR_MEDIAN }) {
                edgekv_policy policy = policy_of(base, 5);
                policy.anchor        = anchor;
                std::vector<float> scores(n), expected(n);
                Scratch            fresh;
                policy.weigh         = base % 3; // none, caote, fastcaote
                policy.flags         = EDGEKV_AHAKV_STEP_GAIN | EDGEKV_AHAKV_VALUE_PRIOR;
                ScratchSize least{ n, dim };
                least.n_rows   = size.n_rows;
                least.n_window = traits_of(policy).queries ? size.n_window : 0; // the other one has room for keys, which are read once then
                fresh.reserve(least);
                score_cells(policy, cells, 10, fresh, expected.data());
                score_cells(policy, cells, 10, kept, scores.data());
                CHECK(scores == expected);
            }
        }
        CHECK(kept.held() == Scratch::bytes(size));
    }
}

static void test_policies_that_cannot_be() {
    const auto status = [](const edgekv_policy & policy) { return status_of([&] { check(policy); }); };
    edgekv_policy policy = policy_of(EDGEKV_BASE_KEYDIFF);
    CHECK(status(policy) == EDGEKV_STATUS_OK);
    for (int32_t edgekv_policy::*field : { &edgekv_policy::base, &edgekv_policy::anchor, &edgekv_policy::metric, &edgekv_policy::pool,
                                           &edgekv_policy::aggregate }) {
        for (const int32_t value : { -1, 99 }) {
            edgekv_policy wrong = policy;
            wrong.*field        = value;
            CHECK(status(wrong) == EDGEKV_STATUS_INVALID_ARGUMENT);
        }
    }
    for (const uint32_t kernel : { 0u, 2u }) {
        CHECK(status(policy_of(EDGEKV_BASE_SINK, kernel)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    policy.anchor = EDGEKV_ANCHOR_PAIRWISE;
    CHECK(status(policy) == EDGEKV_STATUS_OK);
    policy.metric = EDGEKV_METRIC_DOT;
    CHECK(status(policy) == EDGEKV_STATUS_INVALID_ARGUMENT);

    policy          = policy_of(EDGEKV_BASE_SNAPKV);
    policy.critical = 1;
    policy.alpha    = 1.5;
    CHECK(status(policy) == EDGEKV_STATUS_INVALID_ARGUMENT);
    policy.alpha = 0.5;
    for (const double epsilon : { -1e-4, double(NAN), double(INFINITY) }) {
        policy.epsilon = epsilon;
        CHECK(status(policy) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    policy.epsilon = 1e-4;
    policy.rows    = 0;
    CHECK(status(policy) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(status(policy_of(EDGEKV_BASE_CUSTOM)) == EDGEKV_STATUS_INVALID_ARGUMENT); // no scorer

    const edgekv_scorer scorer = { sizeof(scorer), [](void *, const edgekv_layer_view *, float *) { return 0; }, nullptr, EDGEKV_READS_KEYS,
                                   0 };
    for (int32_t base = EDGEKV_BASE_SINK; base <= EDGEKV_BASE_CUSTOM; ++base) {
        policy           = policy_of(base);
        policy.scorer    = &scorer;
        policy.safeguard = 0.2;
        policy.pyramid   = 20.0;
        CHECK(status(policy) == EDGEKV_STATUS_OK);
        const bool comparable = base != EDGEKV_BASE_SINK && base != EDGEKV_BASE_RANDOM && base != EDGEKV_BASE_CUSTOM;
        policy.spread         = EDGEKV_SPREAD_LAYER;
        CHECK(status(policy) == (comparable ? EDGEKV_STATUS_OK : EDGEKV_STATUS_INVALID_ARGUMENT));
        policy.pyramid = 0.0;
        CHECK(status(policy) == (comparable ? EDGEKV_STATUS_OK : EDGEKV_STATUS_INVALID_ARGUMENT));
        policy.spread = EDGEKV_SPREAD_LAYER + 1;
        CHECK(status(policy) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    policy         = policy_of(EDGEKV_BASE_TOVA);
    policy.pyramid = std::numeric_limits<double>::quiet_NaN();
    CHECK(status(policy) == EDGEKV_STATUS_INVALID_ARGUMENT);
}

static void test_null_arguments() {
    const edgekv_policy     policy     = policy_of(EDGEKV_BASE_SINK);
    const edgekv_protection protection = edgekv_protection_default();
    const int32_t           position   = 0;
    float                   score      = 0;
    const edgekv_rows       rows       = { sizeof(edgekv_rows), GGML_TYPE_F32, &score, 1, 4, 1, 0 };
    const edgekv_cells      cells      = { sizeof(edgekv_cells), &rows, nullptr, &position, nullptr, nullptr, 0, 0 };
    const edgekv_cells      no_keys    = { sizeof(edgekv_cells), nullptr, nullptr, &position, nullptr, nullptr, 0, 0 };
    const edgekv_cells      nowhere    = { sizeof(edgekv_cells), &rows, nullptr, nullptr, nullptr, nullptr, 0, 0 };
    uint32_t                kept       = 0;
    size_t                  n_kept     = 0;

    char err[64] = "";
    CHECK(edgekv_score(nullptr, &cells, nullptr, 0, &score, err, sizeof(err)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(std::strstr(err, "NULL") != nullptr);
    for (const edgekv_cells * wrong : { static_cast<const edgekv_cells *>(nullptr), &no_keys, &nowhere }) {
        CHECK(edgekv_score(&policy, wrong, nullptr, 0, &score, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
        CHECK(edgekv_choose(&policy, wrong, nullptr, &protection, 1, 1, &kept, &n_kept, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    CHECK(edgekv_score(&policy, &cells, nullptr, 0, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_choose(&policy, &cells, nullptr, &protection, 1, 0, &kept, &n_kept, nullptr, 0) == EDGEKV_STATUS_OK && n_kept == 0);
    CHECK(edgekv_wo_norm(&rows, nullptr, 0, 1, &score, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_wo_norm(&rows, &rows, 1, 1, &score, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);

    // what a policy reads must be there
    for (int32_t base = EDGEKV_BASE_H2O; base <= EDGEKV_BASE_CUSTOM; ++base) {
        CHECK(edgekv_score(&policy, &cells, nullptr, 1, &score, nullptr, 0) == EDGEKV_STATUS_OK);
        const edgekv_policy reader = policy_of(base);
        CHECK(edgekv_score(&reader, &cells, nullptr, 1, &score, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    edgekv_policy wrapped = policy;
    wrapped.weigh         = EDGEKV_WEIGH_CAOTE;
    CHECK(edgekv_score(&wrapped, &cells, nullptr, 1, &score, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    wrapped.weigh    = EDGEKV_WEIGH_NONE;
    wrapped.critical = 1;
    CHECK(edgekv_score(&wrapped, &cells, nullptr, 1, &score, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_select(nullptr, &position, 1, 1, &protection, &kept, &n_kept, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_select(&score, nullptr, 1, 1, &protection, &kept, &n_kept, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_select(&score, &position, 1, 1, nullptr, &kept, &n_kept, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_select(&score, &position, 1, 1, &protection, nullptr, &n_kept, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_select(&score, &position, 1, 1, &protection, &kept, nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
}

// ---- threads and errors ----

static void test_team() {
    for (const size_t n_threads : { 1, 3, 16 }) {
        Team team(n_threads);
        for (int round = 0; round < 20; ++round) { // the same threads again and again
            std::vector<std::atomic<int>> runs(50);
            std::atomic<bool>             in_range{ true };
            team.each(runs.size(), [&](size_t task, size_t thread) {
                ++runs[task];
                in_range = in_range && thread < n_threads;
            });
            CHECK(std::all_of(runs.begin(), runs.end(), [](const auto & n) { return n == 1; }));
            CHECK(in_range);

            // an error comes out as it was thrown, after every thread has stopped
            std::atomic<int> n_running{ 0 };
            const auto       status = status_of([&] {
                team.each(1000, [&](size_t task, size_t) {
                    ++n_running;
                    const bool bad = task == 5;
                    --n_running;
                    if (bad) {
                        fail(EDGEKV_STATUS_NOT_FINITE, "task %zu", task);
                    }
                });
            });
            CHECK(status == EDGEKV_STATUS_NOT_FINITE);
            CHECK(n_running == 0);
        }
        team.each(0, [&](size_t, size_t) { CHECK(!"a task of none"); });
    }
}

// An abort of ggml on another thread comes out as an error where it does on the caller's, and ends the process where it does there.
static void test_aborts_in_a_team() {
    Team       team(2);
    const auto abort_on_the_other = [&] {
        std::atomic<int> n_begun{ 0 };
        team.each(2, [&](size_t, size_t thread) { // each thread has one task, as it waits for the other's
            for (++n_begun; n_begun < 2;) {
                std::this_thread::yield();
            }
            if (thread != 0) {
                GGML_ABORT("a test");
            }
        });
    };
    static bool                 was_told = false;
    const ggml_abort_callback_t before   = ggml_set_abort_callback([](const char *) {
        was_told = true;
        throw 7; // out of ggml_abort, which would end the process
    });
    {
        const Contained contained;
        CHECK(status_of(abort_on_the_other) == EDGEKV_STATUS_INTERNAL && !was_told);
        const Computing computing;
        try {
            abort_on_the_other();
        } catch (int) {
        }
        CHECK(was_told);
    }
    ggml_set_abort_callback(before);
}

static void test_guard() {
    char err[16];
    CHECK(guard(err, sizeof(err), [] {}) == EDGEKV_STATUS_OK);
    CHECK(guard(err, sizeof(err), [] { fail(EDGEKV_STATUS_UNSUPPORTED, "%d is %s", 7, "odd"); }) == EDGEKV_STATUS_UNSUPPORTED);
    CHECK(std::string(err) == "7 is odd");
    CHECK(guard(err, sizeof(err), [] { throw std::bad_alloc(); }) == EDGEKV_STATUS_OUT_OF_MEMORY);
    CHECK(std::string(err) == "an allocation f"); // cut, and terminated
    CHECK(guard(err, sizeof(err), [] { throw std::runtime_error("surprise"); }) == EDGEKV_STATUS_INTERNAL);
    CHECK(std::string(err) == "surprise");
    CHECK(guard(err, sizeof(err), [] { throw 7; }) == EDGEKV_STATUS_INTERNAL);
    CHECK(guard(nullptr, 0, [] { throw 7; }) == EDGEKV_STATUS_INTERNAL);

    std::fill_n(err, sizeof(err), '!');
    guard(err, 0, [] { throw 7; });
    CHECK(err[0] == '!');
    guard(err, 1, [] { throw 7; });
    CHECK(err[0] == '\0' && err[1] == '!');
    guard(err, 5, [] { throw std::runtime_error("surprise"); });
    CHECK(std::string(err) == "surp" && err[5] == '!');

    // a message longer than the library's own buffer
    const std::string endless(4000, 'x');
    std::string       copy(5000, '\0');
    guard(copy.data(), copy.size(), [&] { fail(EDGEKV_STATUS_INTERNAL, "%s", endless.c_str()); });
    CHECK(std::strlen(copy.c_str()) == 511);
}

// More cells than 32 bits count are as many as these can say: no fewer, and no context has them.
static void test_layouts() {
    const auto same = [](const edgekv_layout & layout, uint32_t n_cells, uint32_t n_cells_max) {
        return layout.n_cells == n_cells && layout.n_cells_max == n_cells_max;
    };
    CHECK(same(layout_for(100, 32, 8, 0, 8192), 140, 140));
    CHECK(same(layout_for(100, 32, 8, EDGEKV_RAGGED_HEADS, 8192), 140, 840));
    CHECK(same(layout_for(100, 32, 8, EDGEKV_RAGGED_HEADS, 1024), 140, 512));
    CHECK(same(layout_for(1u << 29, 128, 64, EDGEKV_RAGGED_HEADS, 8192), (1u << 29) + 192, 3 * (1u << 29) + 192));
    CHECK(same(layout_for(1u << 29, 128, 64, EDGEKV_RAGGED_HEADS, UINT32_MAX), (1u << 29) + 192, UINT32_MAX / 2));
    CHECK(same(layout_for(1u << 31, 128, 64, EDGEKV_RAGGED_HEADS, 8192), (1u << 31) + 192, UINT32_MAX));
    for (const uint32_t ragged : { 0u, uint32_t(EDGEKV_RAGGED_HEADS) }) {
        CHECK(same(layout_for(UINT32_MAX - 100, 128, 64, ragged, 8192), UINT32_MAX, UINT32_MAX));
        CHECK(same(layout_for(UINT32_MAX, UINT32_MAX, UINT32_MAX, ragged, UINT32_MAX), UINT32_MAX, UINT32_MAX));
    }
}

static void test_names() {
    CHECK(edgekv_abi_version() == EDGEKV_ABI_VERSION);
    CHECK(std::string(edgekv_status_name(EDGEKV_STATUS_OUT_OF_MEMORY)) == "out of memory");
    CHECK(std::string(edgekv_status_name(static_cast<edgekv_status>(5000))) == "unknown");
}

static void test_plain_arrays() {
    test_rows_of_floats();
    test_rows_of_blocks();
    test_rows_that_cannot_be();
    test_hadamard();
    test_kernels();
    test_columns();
    test_rope();
    test_matrix_rows();
    test_pages();
    test_columns_alone();
    test_experts();
    test_products();
    test_pools_of_rows();
    test_starts_of_heads();
    test_readers_of_rows();
    test_versions_of_rows();
    test_selection();
    test_protection();
    test_scores_that_are_not_finite();
    test_allot();
    test_pooling();
    test_pooling_of_nan();
    test_scratch();
    test_policies_that_cannot_be();
    test_null_arguments();
    test_team();
    test_aborts_in_a_team();
    test_layouts();
    test_guard();
    test_names();
}

// Give new threads the stack that they have with musl, but for what sanitizers put there.
static void use_small_stacks() {
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    CHECK(pthread_getattr_default_np(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 128 << 10) == 0);
    CHECK(pthread_setattr_default_np(&attributes) == 0);
#endif
}

// Without a model it tests what works on plain arrays, which takes as long as a model does; else that model. So does every allocation
// that fails in turn, alone.
int main(int argc, char ** argv) {
    use_small_stacks();
    if (argc == 1) {
        test_plain_arrays();
    } else if (argc > 3) {
        test_failures(argv[1], argv[2]);
    } else {
        test_cache(argv[1], argc > 2 ? argv[2] : "f16");
        test_custom(argv[1], argc > 2 ? argv[2] : "f16");
        test_pools(argv[1], argc > 2 ? argv[2] : "f16");
        test_allowed(argv[1], argc > 2 ? argv[2] : "f16");
        test_ragged(argv[1], argc > 2 ? argv[2] : "f16");
        test_reposition(argv[1], argc > 2 ? argv[2] : "f16");
        test_slots(argv[1], argc > 2 ? argv[2] : "f16");
        test_snapshot(argv[1], argc > 2 ? argv[2] : "f16");
        test_graphs(argv[1], argc > 2 ? argv[2] : "f16");
        test_host(argv[1], argc > 2 ? argv[2] : "f16");
        test_plan(argv[1]);
        test_weights_file(argv[1]);
        test_parallel_reads(argv[1]);
        test_streamed_weights(argv[1]);
    }
    std::puts(n_failed == 0 ? "OK" : "FAILED");
    return n_failed == 0 ? 0 : 1;
}
