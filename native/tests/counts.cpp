// What a token, an eviction and a question tell a device to do, counted. On a GPU each of these takes the time that it takes to start
// a kernel, or to wait, however little it computes.
#include "cache_fixture.h"
#include "counting_backend.h"
#include "edgekv_archive.h"
#include "llama-context.h"

#include <cstdio>
#include <functional>
#include <string>

namespace {

constexpr uint32_t budget = 512;
constexpr uint32_t block  = 128;
constexpr uint32_t n_rows = 32; // of queries that score, which a question has in each part
constexpr uint32_t n_recalled = 64; // cells of a head
constexpr char     largest_attention[] = "snapkv(window=32, aggregate=max)";

// The most that something may cost; UINT32_MAX = whatever it takes.
struct Limits {
    uint32_t n_graphs;
    uint32_t n_waits;
    uint32_t n_uploads;
    uint32_t n_reads;
    uint32_t n_kernels = UINT32_MAX;
};

constexpr uint32_t any = UINT32_MAX;

void check_counts(const char * what, const Limits & limits, const std::function<void()> & work) {
    counting::take();
    work();
    const counting::Counts n = counting::take();
    std::printf("%-52s %5u graphs %6u kernels %5u synchronisations %5u uploads %5u reads\n", what, n.n_graphs, n.n_kernels, n.n_waits,
                n.n_uploads, n.n_reads);
    CHECK(n.n_graphs <= limits.n_graphs && n.n_waits <= limits.n_waits && n.n_uploads <= limits.n_uploads && n.n_reads <= limits.n_reads);
    CHECK(n.n_kernels <= limits.n_kernels);
}

edgekv_policy policy_named(const std::string & name) {
    edgekv_policy policy = edgekv_policy_default();
    CHECK(edgekv_policy_parse(name.c_str(), &policy, nullptr, 0) == EDGEKV_STATUS_OK);
    return policy;
}

// A cache on the device for one policy, with room for a budget and a block. divided: heads may keep what they are given; turned: keys
// are turned at evictions
struct Counted {
    Counted(const Model & model, const edgekv_policy & policy, bool divided, bool probed, bool turned = false) :
        policy(policy), turned(turned), context(model, "f16", 1, layout_for(budget, block, 2 * n_rows, divided ? EDGEKV_RAGGED_HEADS : 0, 4096), block) {
        edgekv_cache_params needs = edgekv_cache_params_default();
        needs.ragged              = divided ? EDGEKV_RAGGED_HEADS : 0;
        needs.n_probe_rows        = probed ? 2 * n_rows : 0;
        needs.repositions         = turned;
        CHECK(edgekv_cache_params_for(&policy, block, probed, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
        cache = open_cache(context, needs);
        for (uint32_t h = 0; divided && h < cache->shape.n_head_total; ++h) { // every head another number than its neighbours
            budgets.push_back(h % 3 == 0 ? budget / 2 : h % 3 == 1 ? budget : budget + budget / 2);
        }
    }

    // Fill the cells that are free, but for n_left of each head.
    void read(uint32_t n_left = 0) {
        while (const uint32_t n = std::min(block, edgekv_cache_n_free(cache.get()) - n_left)) {
            if (!CHECK(feed(cache, n) == EDGEKV_STATUS_OK)) {
                return;
            }
        }
    }

    void evict(bool probed) {
        const edgekv_protection        protection = { sizeof(edgekv_protection), 4, 8, nullptr, 0 };
        const edgekv_compaction_params params     = { sizeof(params), &policy, &protection, budget, probed, 0, turned, budgets.empty() ? nullptr : budgets.data() };
        edgekv_compaction              result;
        CHECK(edgekv_cache_compact(cache.get(), &params, &result, nullptr, 0) == EDGEKV_STATUS_OK);
        CHECK(result.n_evicted > 0);
    }

    edgekv_policy         policy;
    bool                  turned;
    Context               context;
    Cache                 cache;
    std::vector<uint32_t> budgets;
};

void test_eviction(const Model & model, const std::string & name, bool divided, const Limits & limits) {
    Counted counted(model, policy_named(name), divided, false);
    for (int i = 0; i < 2; ++i) { // then the heads have the lengths that they keep
        counted.read();
        counted.evict(false);
    }
    counted.read();
    check_counts(("eviction, " + name + (divided ? ", divided" : "")).c_str(), limits, [&] { counted.evict(false); });
}

// The parts of a question score an eviction, each by its own queries.
void test_question(const Model & model, const Limits & limits) {
    Counted counted(model, policy_named(largest_attention), false, true);
    counted.read(2 * n_rows);
    const std::vector<llama_token> question(2 * n_rows, 17);
    const uint32_t                 ends[] = { n_rows, 2 * n_rows };
    CHECK(edgekv_cache_probe(counted.cache.get(), question.data(), question.size(), ends, 2, nullptr, 0) == EDGEKV_STATUS_OK);
    check_counts("question of two parts", limits, [&] { counted.evict(true); });
}

// What an archive copies of a block, and brings back to all heads.
void test_archive(const Model & model, bool divided, bool turned, const Limits & recalled) {
    const std::string of = std::string(divided ? ", divided" : "") + (turned ? ", turned" : "");
    const Limits      of_a_block = { 2, 3, 2, 2 };
    Counted          counted(model, policy_named("keydiff"), divided, true, turned);
    std::FILE *      file    = std::tmpfile();
    edgekv_archive * archive = nullptr;
    CHECK(edgekv_archive_open(counted.cache.get(), fileno(file), 0, UINT64_MAX, &archive, nullptr, 0) == EDGEKV_STATUS_OK);
    const auto append = [&] { CHECK(edgekv_archive_append(archive, counted.cache.get(), nullptr, 0) == EDGEKV_STATUS_OK); };
    for (int i = 0; i < 2; ++i) {
        while (edgekv_cache_n_free(counted.cache.get()) >= block) {
            CHECK(feed(counted.cache, block) == EDGEKV_STATUS_OK);
            append();
        }
        counted.evict(false);
    }
    CHECK(feed(counted.cache, block) == EDGEKV_STATUS_OK);
    check_counts(("block taken" + of).c_str(), of_a_block,
                 [&] { CHECK(edgekv_archive_take(archive, counted.cache.get(), block, nullptr, 0) == EDGEKV_STATUS_OK); });
    counted.evict(false);
    check_counts(("block written" + of).c_str(), { 0, 0, 0, 0 }, [&] { CHECK(edgekv_archive_write(archive, nullptr, 0) == EDGEKV_STATUS_OK); });

    const std::vector<llama_token> question(n_rows, 17);
    CHECK(edgekv_cache_probe(counted.cache.get(), question.data(), question.size(), nullptr, 0, nullptr, 0) == EDGEKV_STATUS_OK);
    const edgekv_recall_params params = { sizeof(params), n_recalled, 0, 20, 10 };
    edgekv_recall              result = {};
    check_counts(("recall of 64 cells" + of).c_str(), recalled, [&] {
        CHECK(edgekv_cache_recall(counted.cache.get(), archive, &params, &result, nullptr, 0) == EDGEKV_STATUS_OK);
    });
    CHECK(result.n_cells == n_recalled);

    CHECK(edgekv_cache_clear(counted.cache.get(), nullptr, 0) == EDGEKV_STATUS_OK);
    check_counts(("block read from the archive" + of).c_str(), of_a_block, [&] {
        CHECK(edgekv_cache_refill(counted.cache.get(), archive, block, nullptr, 0) == EDGEKV_STATUS_OK);
    });
    edgekv_archive_free(archive);
    std::fclose(file);
}

void test_token(const Model & model, const char * what, bool divided, const Limits & limits) {
    Counted counted(model, policy_named(largest_attention), divided, false);
    counted.read();
    counted.evict(false);
    CHECK(feed(counted.cache, 1) == EDGEKV_STATUS_OK); // a graph is built
    check_counts(what, limits, [&] { CHECK(feed(counted.cache, 1) == EDGEKV_STATUS_OK); });
}

// llama.cpp's own cache, for comparison.
void test_token_of_llama(const Model & model) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = budget + block;
    params.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context * ctx         = llama_init_from_model(model.model, params);
    llama_token     token       = 17;
    CHECK(ctx != nullptr && llama_decode(ctx, llama_batch_get_one(&token, 1)) == 0);
    llama_get_logits_ith(ctx, -1);
    check_counts("token, llama.cpp's own cache", { any, any, any, any }, [&] {
        CHECK(llama_decode(ctx, llama_batch_get_one(&token, 1)) == 0);
        llama_get_logits_ith(ctx, -1);
    });
    llama_free(ctx);
}

} // namespace

// MODEL of the layers and heads that are to be counted.
int main(int argc, char ** argv) {
    if (argc < 2) {
        return 2;
    }
    {
        const Model model(argv[1], false, counting::device(), 99);
        test_token_of_llama(model);
        test_token(model, "token", false, { 1, 10, 8, 1, 606 });
        test_token(model, "token, divided heads", true, { 1, 10, 8, 1, 615 });
        test_eviction(model, "keydiff", false, { 10, 12, 10, 1 });
        test_eviction(model, "keydiff", true, { 20, 22, 10, 1 });
        test_eviction(model, "keydiff(rope=off)", false, { 12, 14, 13, 1 });
        test_eviction(model, "keydiff(rope=off)", true, { 20, 22, 13, 1 });
        test_eviction(model, largest_attention, false, { 20, 22, 15, 1 });
        test_eviction(model, largest_attention, true, { 25, 27, 15, 1 });
        test_eviction(model, "ahakv", false, { 20, 22, 16, 2 });
        test_eviction(model, "snapkv+critical", false, { 25, 27, 15, 2 });
        test_eviction(model, "keydiff(anchor=median)", false, { any, any, any, 120 });
        test_question(model, { 25, 27, 15, 2 });
        // one graph, upload and read for the probe's keys alone, and the queries of 30 layers
        test_archive(model, false, false, { 2, 3, 2, 31, 3 });
        test_archive(model, false, true, { 7, 8, 7, 31, 8 });
        test_archive(model, true, false, { 24, 25, 46, 31, 91 }); // heads get unlike numbers, so rows move
        test_archive(model, true, true, { 29, 30, 51, 31, 96 });
    }
    std::puts(n_failed == 0 ? "OK" : "FAILED");
    return n_failed == 0 ? 0 : 1;
}
