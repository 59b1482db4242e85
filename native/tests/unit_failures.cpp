// Every allocation of an operation on a cache, and every start of a thread, made to fail, one after the other: the operation
// fails with a status or does without, the cache is as before, and then the operation comes out as if nothing had happened.
#include "cache_fixture.h"
#include "edgekv_archive.h"
#include "failing.h"
#include "llama-kv-cache.h"

#include <cstring>
#include <functional>

namespace {

constexpr uint32_t budget = 24, n_block = 16, n_probe = 4;

const edgekv_layout roomy = { sizeof(edgekv_layout), budget + n_block + n_probe, 3 * budget + n_block + n_probe, 0 };

using Operation = std::function<edgekv_status(edgekv_cache *)>;

edgekv_cache_params needs_of(const edgekv_policy & policy, bool reposition = true) {
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.n_probe_rows        = n_probe;
    needs.n_draft             = 3;
    needs.repositions         = reposition;
    CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
    return needs;
}

// What a cache holds: its snapshot has it all, but also norms of cells that no compaction has seen, which are nobody's.
struct State {
    State(const Cache & cache, bool with_norms) : n_past(cache->n_past), rope_past(cache->rope_past) {
        if (with_norms) {
            saved = save(cache);
        } else {
            heads = read_all(cache);
        }
    }
    bool operator==(const State & other) const {
        return saved == other.saved && heads == other.heads && n_past == other.n_past && rope_past == other.rope_past;
    }

    int32_t           n_past, rope_past;
    Bytes             saved;
    std::vector<Head> heads;
};

std::vector<float> logits_after(const Cache & cache, size_t n) {
    CHECK(feed(cache, n) == EDGEKV_STATUS_OK);
    const float * logits  = llama_get_logits_ith(cache->ctx, -1);
    const auto    n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(cache->ctx)));
    return { logits, logits + n_vocab };
}

// `operation` on a cache that is as `before`; `then` is what becomes of it when it goes on.
void fail_each(const char * name, const Cache & cache, const Bytes & before, const Operation & operation, bool with_norms = true,
               const Operation & then = nullptr) {
    const auto outcome = [&] {
        CHECK(then == nullptr || then(cache.get()) == EDGEKV_STATUS_OK);
        State state(cache, with_norms);
        return std::make_pair(state, logits_after(cache, 2));
    };
    CHECK(restore(cache, before) == EDGEKV_STATUS_OK);
    const State expected_before(cache, with_norms);
    CHECK(operation(cache.get()) == EDGEKV_STATUS_OK);
    const auto expected = outcome();

    long n = 0, n_failed_ones = 0;
    for (const bool all : { false, true }) {
        for (long i = 0; n_failed == 0; ++i) {
            CHECK(restore(cache, before) == EDGEKV_STATUS_OK);
            failing::begin(i, all);
            const edgekv_status status = operation(cache.get());
            const long          n_were = failing::end();
            if (status != EDGEKV_STATUS_OK) {
                ++n_failed_ones;
                CHECK(status == EDGEKV_STATUS_OUT_OF_MEMORY);
                CHECK(State(cache, with_norms) == expected_before);
                CHECK(operation(cache.get()) == EDGEKV_STATUS_OK);
            }
            CHECK(outcome() == expected);
            if (n_failed > 0) {
                std::fprintf(stderr, "%s, allocation %ld%s: status %d\n", name, i, all ? " and all later" : "", status);
            }
            if (n_were <= i) {
                n = std::max(n, i);
                break;
            }
        }
    }
    CHECK(n > 0 && n_failed_ones > 0);
    if (std::getenv("EDGEKV_TESTS_VERBOSE") != nullptr) {
        std::printf("%-24s %5ld allocations, %5ld failures\n", name, n, n_failed_ones);
    }
}

Operation compaction(const edgekv_policy & policy, bool reposition = false, bool probed = false) {
    return [=](edgekv_cache * cache) {
        const edgekv_protection        protection = { sizeof(edgekv_protection), 2, 3, nullptr, 0 };
        const edgekv_compaction_params params     = { sizeof(params), &policy, &protection, budget, probed, 0, reposition, nullptr };
        edgekv_compaction              result;
        return edgekv_cache_compact(cache, &params, &result, nullptr, 0);
    };
}

struct Variant {
    const char *  name;
    edgekv_policy policy;
    bool          reposition;
};

std::vector<Variant> variants() {
    std::vector<Variant> all;
    all.push_back({ "keydiff", policy_of(EDGEKV_BASE_KEYDIFF), false });
    all.push_back({ "snapkv, repositioned", policy_of(EDGEKV_BASE_SNAPKV), true });
    all.push_back({ "h2o, ragged", policy_of(EDGEKV_BASE_H2O), true });
    all.back().policy.spread    = EDGEKV_SPREAD_LAYER;
    all.back().policy.safeguard = 0.2;
    all.push_back({ "keydiff, ragged", policy_of(EDGEKV_BASE_KEYDIFF), false });
    all.back().policy.spread  = EDGEKV_SPREAD_LAYER;
    all.back().policy.softmax = 1;
    all.push_back({ "keydiff, before RoPE", policy_of(EDGEKV_BASE_KEYDIFF), true });
    all.back().policy.flags = EDGEKV_KEYDIFF_BEFORE_ROPE;
    all.push_back({ "critical", policy_of(EDGEKV_BASE_SNAPKV), false });
    all.back().policy.critical = 1;
    all.back().policy.alpha    = 0.5;
    return all;
}

// Read some blocks; returns the cache with room for less than a block.
Bytes prepare(const Cache & cache, const edgekv_policy & policy) {
    for (int i = 0; i < 3; ++i) {
        CHECK(feed(cache, n_block) == EDGEKV_STATUS_OK);
        CHECK(compaction(policy)(cache.get()) == EDGEKV_STATUS_OK);
    }
    CHECK(feed(cache, n_block / 2) == EDGEKV_STATUS_OK);
    return save(cache);
}

void test_operations(const Model & model, const char * kv_type) {
    const llama_token tokens[n_block] = { 5, 7, 11, 13, 17, 19 };
    for (const Variant & variant : variants()) {
        const Context context(model, kv_type, 2, roomy);
        const Cache   cache  = open_cache(context, needs_of(variant.policy));
        llama_set_n_threads(context.ctx, 1, 1); // the cache keeps its two; llama.cpp's would spin on a busy machine
        const Bytes   before = prepare(cache, variant.policy);
        const bool    norms  = !variant.policy.critical;
        fail_each(variant.name, cache, before, compaction(variant.policy, variant.reposition), norms);
        if (variant.policy.base != EDGEKV_BASE_SNAPKV || variant.policy.critical) {
            continue;
        }
        for (const bool logits : { false, true }) {
            const Operation fed = [&](edgekv_cache * c) { return edgekv_cache_feed(c, tokens, 6, logits, nullptr, 0); };
            fail_each(logits ? "feed with logits" : "feed", cache, before, fed, norms, compaction(variant.policy));
        }
        const Operation drafted = [&](edgekv_cache * c) {
            const edgekv_status status = edgekv_cache_feed_draft(c, tokens[0], tokens + 1, 3, nullptr, 0);
            return status == EDGEKV_STATUS_OK ? edgekv_cache_accept(c, nullptr, 0) : status; // two of the three are dropped
        };
        fail_each("draft", cache, before, drafted, norms, compaction(variant.policy));
        const Operation probe = [&](edgekv_cache * c) { return edgekv_cache_probe(c, tokens, n_probe, nullptr, 0, nullptr, 0); };
        fail_each("probe", cache, before, probe, norms, compaction(variant.policy, false, true));

        Bytes           room(before.size());
        const Operation saved = [&](edgekv_cache * c) { return edgekv_cache_save(c, nullptr, 0, room.data(), room.size(), nullptr, 0); };
        fail_each("save", cache, before, saved, norms);
        CHECK(room == before);

        CHECK(restore(cache, before) == EDGEKV_STATUS_OK && compaction(variant.policy, true)(cache.get()) == EDGEKV_STATUS_OK);
        CHECK(feed(cache, 5) == EDGEKV_STATUS_OK);
        const Bytes     other    = save(cache);
        const Operation restored = [&](edgekv_cache * c) { return edgekv_cache_restore(c, other.data(), other.size(), nullptr, 0); };
        fail_each("restore", cache, before, restored, norms);

        edgekv_snapshot head;
        std::memcpy(&head, before.data(), sizeof(head));
        const Operation numbered = [&](edgekv_cache * c) {
            const edgekv_status status = edgekv_cache_restore_numbers(c, before.data(), head.rows_begin, nullptr, 0);
            return status != EDGEKV_STATUS_OK ? status
                                              : edgekv_cache_restore_rows(c, nullptr, head.rows_begin, before.data() + head.rows_begin,
                                                                          before.size() - head.rows_begin, nullptr, 0);
        };
        fail_each("restore in two", cache, before, numbered, norms);
    }
}

// Rows that are archived, and those that a recall brings back.
void test_archive(const Model & model, const char * kv_type) {
    const edgekv_policy policy = policy_of(EDGEKV_BASE_KEYDIFF);
    const Context       context(model, kv_type, 2, roomy);
    const Cache         cache = open_cache(context, needs_of(policy));
    llama_set_n_threads(context.ctx, 1, 1);

    std::FILE *      file    = std::tmpfile();
    edgekv_archive * archive = nullptr;
    CHECK(edgekv_archive_open(cache.get(), fileno(file), 0, UINT64_MAX, &archive, nullptr, 0) == EDGEKV_STATUS_OK);
    Bytes earlier;
    for (int i = 0; i < 4; ++i) {
        earlier = save(cache);
        CHECK(feed(cache, n_block) == EDGEKV_STATUS_OK);
        CHECK(edgekv_archive_append(archive, cache.get(), nullptr, 0) == EDGEKV_STATUS_OK);
        CHECK(compaction(policy)(cache.get()) == EDGEKV_STATUS_OK);
    }
    const Operation recalled = [&](edgekv_cache * c) {
        const llama_token          tokens[n_probe] = { 5, 7, 11, 13 };
        const edgekv_recall_params params          = { sizeof(edgekv_recall_params), 6, 0, 4, 2 };
        edgekv_recall              result          = {};
        const edgekv_status        status          = edgekv_cache_probe(c, tokens, n_probe, nullptr, 0, nullptr, 0);
        return status == EDGEKV_STATUS_OK ? edgekv_cache_recall(c, archive, &params, &result, nullptr, 0) : status;
    };
    const Bytes before = save(cache);
    fail_each("recall", cache, before, recalled, true, compaction(policy));
    const Operation in_steps = [&](edgekv_cache * c) {
        const llama_token          tokens[n_probe] = { 5, 7, 11, 13 };
        const edgekv_recall_params params          = { sizeof(edgekv_recall_params), 6, 0, 4, 2 };
        edgekv_recall              result          = {};
        edgekv_recall_work *       work            = nullptr;
        uint32_t                   n_left          = 0;
        edgekv_status              status          = edgekv_cache_probe(c, tokens, n_probe, nullptr, 0, nullptr, 0);
        status = status == EDGEKV_STATUS_OK ? edgekv_recall_begin(c, archive, &params, &work, &n_left, nullptr, 0) : status;
        while (status == EDGEKV_STATUS_OK && n_left > 0) {
            status = edgekv_recall_scan(work, 3, &n_left, nullptr, 0);
        }
        status = status == EDGEKV_STATUS_OK ? edgekv_recall_finish(work, c, &result, nullptr, 0) : status;
        edgekv_recall_free(work);
        return status;
    };
    CHECK(restore(cache, before) == EDGEKV_STATUS_OK);
    fail_each("recall in steps", cache, before, in_steps, true, compaction(policy));
    const Operation twice = [&](edgekv_cache * c) {
        const edgekv_status status = recalled(c);
        return status == EDGEKV_STATUS_OK ? recalled(c) : status;
    };
    CHECK(restore(cache, before) == EDGEKV_STATUS_OK);
    CHECK(twice(cache.get()) == EDGEKV_STATUS_OK && edgekv_cache_n_cells(cache.get()) == budget + 6);
    const Operation refilled = [&](edgekv_cache * c) { return edgekv_cache_refill(c, archive, n_block, nullptr, 0); };
    CHECK(restore(cache, earlier) == EDGEKV_STATUS_OK);
    fail_each("refill", cache, earlier, refilled, true, compaction(policy));
    CHECK(restore(cache, earlier) == EDGEKV_STATUS_OK);
    CHECK(refilled(cache.get()) == EDGEKV_STATUS_OK && compaction(policy)(cache.get()) == EDGEKV_STATUS_OK && save(cache) == before);
    CHECK(refilled(cache.get()) == EDGEKV_STATUS_INVALID_STATE); // no token after these is archived

    // recalled rows, and those of tokens that are not archived yet
    CHECK(recalled(cache.get()) == EDGEKV_STATUS_OK && feed(cache, 3) == EDGEKV_STATUS_OK);
    const Bytes whole = save(cache);
    Bytes       beside(edgekv_cache_snapshot_bytes(cache.get(), archive));
    CHECK(beside.size() < whole.size());
    CHECK(edgekv_cache_save(cache.get(), archive, 0, beside.data(), beside.size(), nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_save(cache.get(), archive, 1, beside.data(), beside.size(), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    edgekv_snapshot head;
    std::memcpy(&head, beside.data(), sizeof(head));
    const uint64_t  n_rows          = beside.size() - head.rows_begin;
    const Operation brought         = [&](edgekv_cache * c) { return edgekv_cache_restore_archived(c, archive, nullptr, 0); };
    const auto      brought_rows_of = [&](edgekv_cache * c) {
        return edgekv_cache_restore_rows(c, archive, head.rows_begin, beside.data() + head.rows_begin, n_rows, nullptr, 0);
    };
    CHECK(restore(cache, earlier) == EDGEKV_STATUS_OK);
    CHECK(edgekv_cache_restore_numbers(cache.get(), beside.data(), head.rows_begin, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(brought_rows_of(cache.get()) == EDGEKV_STATUS_OK && save(cache) != whole);
    CHECK(brought(cache.get()) == EDGEKV_STATUS_OK && save(cache) == whole);
    CHECK(edgekv_cache_restore_rows(cache.get(), archive, head.rows_begin + 1, beside.data(), n_rows, nullptr, 0) ==
          EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_restore_archived(cache.get(), nullptr, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    fail_each("rows of an archive", cache, whole, brought, true, compaction(policy));

    std::FILE *     own      = std::tmpfile();
    const Operation branched = [&](edgekv_cache * c) {
        edgekv_archive * copy   = nullptr;
        edgekv_status    status = edgekv_archive_copy(archive, &copy, nullptr, 0);
        status = status == EDGEKV_STATUS_OK ? edgekv_archive_branch(copy, c, edgekv_archive_end(copy), fileno(own), UINT64_MAX, nullptr, 0) : status;
        CHECK(status != EDGEKV_STATUS_OK || edgekv_archive_end(copy) == edgekv_archive_end(archive));
        edgekv_archive_free(copy);
        return status;
    };
    fail_each("branch", cache, before, branched, true, compaction(policy));
    std::fclose(own);
    edgekv_archive_free(archive);

    CHECK(feed(cache, 5) == EDGEKV_STATUS_OK);
    const int32_t   begin    = cache->n_past - 5;
    const Operation archived = [&](edgekv_cache * c) {
        edgekv_archive * made   = nullptr;
        edgekv_status    status = edgekv_archive_open(c, fileno(file), begin, UINT64_MAX, &made, nullptr, 0);
        status = status == EDGEKV_STATUS_OK ? edgekv_archive_append(made, c, nullptr, 0) : status;
        CHECK(status != EDGEKV_STATUS_OK || edgekv_archive_end(made) == c->n_past);
        edgekv_archive_free(made);
        return status;
    };
    fail_each("archive", cache, save(cache), archived);
    std::fclose(file);
}

// A probe of two batches that fails after the first one: what that overwrote is no longer taken for the queries of the probe before.
void test_probe_in_batches(const Model & model, const char * kv_type) {
    constexpr uint32_t    n_long = n_ubatch + 8;
    const edgekv_layout   layout = { sizeof(edgekv_layout), n_block + n_long, n_block + n_long, 0 };
    edgekv_cache_params   needs  = edgekv_cache_params_default();
    needs.n_probe_rows           = n_long;
    const Context context(model, kv_type, 1, layout);
    const Cache   cache = open_cache(context, needs);
    CHECK(feed(cache, n_block) == EDGEKV_STATUS_OK);

    const auto probe = [&](llama_token token) {
        const std::vector<llama_token> tokens(n_long, token);
        return edgekv_cache_probe(cache.get(), tokens.data(), n_long, nullptr, 0, nullptr, 0);
    };
    const auto queries = [&] { // none where no probe is whole
        std::vector<float>   rows(size_t(n_long) * cache->shape.n_head_max * cache->shape.head_dim_k);
        std::vector<int32_t> positions(n_long);
        uint32_t             n = n_long;
        float                scale;
        const auto status = edgekv_cache_queries(cache.get(), 0, 1, rows.data(), positions.data(), &n, &scale, nullptr, 0);
        return status == EDGEKV_STATUS_OK ? rows : std::vector<float>();
    };
    CHECK(probe(5) == EDGEKV_STATUS_OK);
    const auto before = queries();
    CHECK(!before.empty());
    long n_kept = 0, n_lost = 0;
    for (long i = 0; n_failed == 0; ++i) {
        CHECK(probe(5) == EDGEKV_STATUS_OK && queries() == before);
        const std::vector<llama_token> tokens(n_long, 9);
        failing::begin(i);
        const edgekv_status status = edgekv_cache_probe(cache.get(), tokens.data(), n_long, nullptr, 0, nullptr, 0);
        const long          n_were = failing::end();
        const auto          after  = queries();
        if (status != EDGEKV_STATUS_OK) {
            CHECK(status == EDGEKV_STATUS_OUT_OF_MEMORY && (after.empty() || after == before));
            (after.empty() ? n_lost : n_kept) += 1;
        }
        if (n_were <= i) {
            CHECK(status == EDGEKV_STATUS_OK && !after.empty() && after != before);
            break;
        }
    }
    CHECK(n_kept > 0 && n_lost > 0);
}

// The first feed of a context makes what later ones use again. Returns how many allocations it takes.
long test_first_feed(const Model & model, const char * kv_type, int32_t n_threads, long first) {
    const edgekv_policy policy = policy_of(EDGEKV_BASE_SNAPKV);
    const Context       undisturbed(model, kv_type, n_threads, roomy);
    const auto          expected = logits_after(open_cache(undisturbed, needs_of(policy)), 6);
    for (long i = first;; ++i) {
        const Context            context(model, kv_type, n_threads, roomy);
        const Cache              cache = open_cache(context, needs_of(policy));
        std::vector<llama_token> tokens(6);
        for (size_t t = 0; t < tokens.size(); ++t) {
            tokens[t] = static_cast<llama_token>(7 * t + 3); // as of `feed`
        }
        char err[512] = "";
        failing::begin(i);
        const edgekv_status status = edgekv_cache_feed(cache.get(), tokens.data(), tokens.size(), 1, err, sizeof(err));
        const long          n_were = failing::end();
        if (status != EDGEKV_STATUS_OK) {
            if (!CHECK(status == EDGEKV_STATUS_OUT_OF_MEMORY && cache->n_past == 0 && edgekv_cache_n_cells(cache.get()) == 0)) {
                std::fprintf(stderr, "first feed, allocation %ld: %s\n", i, err);
            }
            CHECK(logits_after(cache, tokens.size()) == expected);
        }
        if (n_were <= i || n_failed > 0) {
            return n_were;
        }
    }
}

void test_open(const Model & model, const char * kv_type) {
    const Context       context(model, kv_type, 1, roomy);
    const edgekv_policy policy   = policy_of(EDGEKV_BASE_SNAPKV);
    auto                needs    = needs_of(policy);
    const auto          expected = logits_after(open_cache(context, needs), 6);
    bool                done     = false;
    for (long i = 0; !done && n_failed == 0; ++i) {
        edgekv_cache * opened = nullptr;
        failing::begin(i);
        char                err[512] = "";
        const edgekv_status status   = edgekv_cache_open(context.ctx, &needs, &opened, err, sizeof(err));
        done                         = failing::end() <= i;
        Cache cache(opened);
        if (status != EDGEKV_STATUS_OK) {
            if (!CHECK(status == EDGEKV_STATUS_OUT_OF_MEMORY && opened == nullptr)) {
                std::fprintf(stderr, "open, allocation %ld: %s\n", i, err);
            }
            cache = open_cache(context, needs);
        }
        CHECK(logits_after(cache, 6) == expected);
    }
}

} // namespace

void test_failures(const char * model_path, const char * kv_type) {
    if (!failing::works) {
        return;
    }
    const Model model(model_path);
    test_operations(model, kv_type);
    test_archive(model, kv_type);
    test_probe_in_batches(model, kv_type);
    const long n = test_first_feed(model, kv_type, 1, 0);
    test_first_feed(model, kv_type, 2, n - 2); // the last of them are a second thread's
    test_open(model, kv_type);
}
