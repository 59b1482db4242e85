// Fewer cells than a context has, and more again: what is kept, what is free, and what the memory of other rows holds.
#include "cache_fixture.h"

#include "rows/flat_cache.h"

#include <algorithm>
#include <string>

using namespace edgekv;

namespace {

constexpr uint32_t n_cells = 256, n_allowed = 96, budget = 64;

constexpr edgekv_layout even = { sizeof(edgekv_layout), n_cells, n_cells, 0 },
                        uneven = { sizeof(edgekv_layout), n_cells, 2 * n_cells, 0 };

edgekv_status allow(const Cache & cache, uint32_t n) { return edgekv_cache_allow(cache.get(), n, nullptr, 0); }

// A cache and one whose cells are never limited.
struct Pair {
    Pair(const Model & model, const char * kv_type, const edgekv_layout & layout, const edgekv_cache_params & needs = edgekv_cache_params_default()) :
        limited_context(model, kv_type, 1, layout), whole_context(model, kv_type, 1, layout),
        limited(open_cache(limited_context, needs)), whole(open_cache(whole_context, needs)) {}

    void feed_both(uint32_t n) const {
        for (uint32_t i = 0; i < n; i += n_ubatch) {
            const uint32_t piece = std::min(n_ubatch, n - i);
            CHECK(feed(limited, piece) == EDGEKV_STATUS_OK);
            CHECK(feed(whole, piece) == EDGEKV_STATUS_OK);
        }
    }
    bool is_alike() const { return read_all(limited) == read_all(whole); }

    Context limited_context, whole_context;
    Cache   limited, whole;
};

// Bytes of the last pages of each pool that are not zero.
size_t n_written(const Context & context, size_t n_bytes) {
    size_t n = 0;
    for (const auto & pool : memory_of(context.ctx).flat->pools()) {
        for (const ggml_tensor * rows : { pool.k, pool.v }) {
            const char * end = static_cast<const char *>(rows->data) + ggml_nbytes(rows);
            n += n_bytes - std::count(end - n_bytes, end, '\0');
        }
    }
    return n;
}

void test_kept(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    const Pair both(model, kv_type, even);
    both.feed_both(200);
    CHECK(allow(both.limited, n_allowed) == EDGEKV_STATUS_OK);
    CHECK(both.is_alike()); // until the next compaction
    CHECK(compact(both.limited, policy, n_allowed + 1) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(both.is_alike());

    for (const Cache * cache : { &both.limited, &both.whole }) {
        CHECK(compact(*cache, policy, budget) == EDGEKV_STATUS_OK);
    }
    CHECK(both.is_alike());
    CHECK(edgekv_cache_n_free(both.limited.get()) == n_allowed - budget);
    CHECK(edgekv_cache_n_free(both.whole.get()) == n_cells - budget);

    both.feed_both(n_allowed - budget);
    CHECK(both.is_alike());
    CHECK(feed(both.limited, 1) == EDGEKV_STATUS_INVALID_STATE);

    // more again: nothing has to go, and all that is there stays
    CHECK(allow(both.limited, n_cells) == EDGEKV_STATUS_OK);
    edgekv_compaction result;
    CHECK(compact(both.limited, policy, n_allowed, protecting(0, 0), &result) == EDGEKV_STATUS_OK);
    CHECK(result.n_evicted == 0 && both.is_alike());
    CHECK(edgekv_cache_n_free(both.limited.get()) == n_cells - n_allowed);
    both.feed_both(n_cells - n_allowed);
    CHECK(both.is_alike());
}

// Heads that hold different numbers draw on what is allowed together.
void test_ragged(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.ragged              = 1;
    const Pair both(model, kv_type, uneven, needs);
    both.feed_both(200);
    std::vector<uint32_t> budgets(both.limited->shape.n_head_total);
    for (size_t i = 0; i < budgets.size(); ++i) {
        budgets[i] = i + 1 == budgets.size() && i % 2 == 0 ? budget : i % 2 == 0 ? budget / 2 : budget + budget / 2;
    }
    CHECK(allow(both.limited, n_allowed) == EDGEKV_STATUS_OK);
    for (const Cache * cache : { &both.limited, &both.whole }) {
        CHECK(compact(*cache, policy, budget, protecting(0, 0), nullptr, budgets.data()) == EDGEKV_STATUS_OK);
    }
    CHECK(both.is_alike() && edgekv_cache_n_free(both.limited.get()) == n_allowed - budget);
    both.feed_both(n_allowed - budget);
    CHECK(both.is_alike());
}

void test_memory(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    const uint32_t n_many = 4096;
    const Pair     both(model, kv_type, { sizeof(edgekv_layout), n_many, n_many, 0 });
    both.feed_both(n_many);
    const FlatCache::Pool & pool    = memory_of(both.limited_context.ctx).flat->pools().front();
    const size_t            n_bytes = (n_many - n_allowed) * pool.n_heads * std::min(pool.k->nb[1], pool.v->nb[1]);
    const size_t            most    = 1 << 16; // the largest page: rows in use may lie in the first one, and others' in the last one
    CHECK(n_bytes > 4 * most);
    CHECK(n_written(both.limited_context, n_bytes - most) > 0);
    CHECK(allow(both.limited, n_allowed) == EDGEKV_STATUS_OK);
    CHECK(compact(both.limited, policy, budget) == EDGEKV_STATUS_OK);
#if defined(__linux__)
    CHECK(n_written(both.limited_context, n_bytes - most) <= 2 * most);
#endif

    // an emptied cache is laid out anew at once
    CHECK(allow(both.limited, budget) == EDGEKV_STATUS_OK);
    both.whole->clear();
    both.limited->clear();
    both.feed_both(budget);
    CHECK(both.is_alike() && edgekv_cache_n_free(both.limited.get()) == 0);
}

void test_refused(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    const Context context(model, kv_type, 1, { sizeof(edgekv_layout), n_cells, n_cells, 0 });
    const Cache   cache = open_cache(context);
    CHECK(allow(cache, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(allow(cache, n_cells + 1) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_allow(nullptr, 1, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);

    for (uint32_t i = 0; i < 4; ++i) {
        CHECK(feed(cache, n_ubatch) == EDGEKV_STATUS_OK);
    }
    const Bytes all = save(cache);
    CHECK(allow(cache, n_allowed) == EDGEKV_STATUS_OK);
    CHECK(compact(cache, policy, budget) == EDGEKV_STATUS_OK);
    const auto before = read_all(cache);
    CHECK(restore(cache, all) == EDGEKV_STATUS_INVALID_ARGUMENT); // of more cells than are allowed
    CHECK(read_all(cache) == before);

    CHECK(allow(cache, n_cells) == EDGEKV_STATUS_OK);
    CHECK(restore(cache, all) == EDGEKV_STATUS_OK && edgekv_cache_n_cells(cache.get()) == 4 * n_ubatch);
}

} // namespace

void test_allowed(const char * model_path, const char * kv_type) {
    const Model         model(model_path);
    const edgekv_policy policy = policy_of(EDGEKV_BASE_KEYDIFF);
    test_kept(model, kv_type, policy);
    test_ragged(model, kv_type, policy);
    test_memory(model, kv_type, policy);
    test_refused(model, kv_type, policy);
}
