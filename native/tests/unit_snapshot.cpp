// Snapshots of a cache: what goes on from one does so bit for bit, and what is none is refused.
#include "cache_fixture.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr uint32_t budget = 40;

const edgekv_layout roomy = { sizeof(edgekv_layout), budget + 2 * n_ubatch, 3 * budget + 2 * n_ubatch, 0 };

std::vector<edgekv_policy> policies() {
    std::vector<edgekv_policy> all;
    for (const int32_t base : { EDGEKV_BASE_KEYDIFF, EDGEKV_BASE_H2O, EDGEKV_BASE_SNAPKV }) {
        all.push_back(policy_of(base));
    }
    all.push_back(policy_of(EDGEKV_BASE_SNAPKV));
    all.back().critical = 1;
    all.back().alpha    = 0.5;
    all.push_back(policy_of(EDGEKV_BASE_H2O));
    all.back().spread    = EDGEKV_SPREAD_LAYER;
    all.back().safeguard = 0.2;
    return all;
}

struct Opened {
    Opened(const Model & model, const char * kv_type, const edgekv_policy & policy) :
        context(model, kv_type, 1, roomy) {
        edgekv_cache_params needs = edgekv_cache_params_default();
        needs.repositions         = 1;
        needs.n_probe_rows        = 8;
        CHECK(edgekv_cache_params_for(&policy, n_ubatch + 3, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK); // a block after `outcome`
        cache = open_cache(context, needs);
    }

    // Blocks, a probe and a token, with evictions that reposition every other time; a `salt` makes it another text.
    void read(const edgekv_policy & policy, uint32_t n_blocks, llama_token salt) {
        for (uint32_t i = 0; i < n_blocks; ++i) {
            const std::vector<llama_token> block(i % 4 == 3 ? 1 : n_ubatch, salt + static_cast<llama_token>(i % 5));
            CHECK(edgekv_cache_feed(cache.get(), block.data(), block.size(), 1, nullptr, 0) == EDGEKV_STATUS_OK);
            const llama_token probe[2] = { salt, 5 };
            CHECK(edgekv_cache_probe(cache.get(), probe, 2, nullptr, 0, nullptr, 0) == EDGEKV_STATUS_OK);
            CHECK(compact(cache, policy, budget, protecting(2, 3), nullptr, nullptr, i % 2 == 0) == EDGEKV_STATUS_OK);
        }
    }

    // Everything that a cache holds, and what the next token makes of it.
    std::pair<Bytes, std::vector<float>> outcome(const Model & model) const {
        CHECK(feed(cache, 3) == EDGEKV_STATUS_OK);
        const float * logits = llama_get_logits_ith(context.ctx, -1);
        return { save(cache), { logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(model.model)) } };
    }

    Context context;
    Cache   cache;
};

template <typename T> T number_at(const Bytes & bytes, size_t at = 0) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
}

// Pieces of a snapshot are those of the whole, and bring it back: numbers first, then rows.
void test_pieces(const Model & model, const char * kv_type) {
    for (const edgekv_policy & policy : policies()) {
        Opened one(model, kv_type, policy), other(model, kv_type, policy);
        one.read(policy, 6, 10);
        CHECK(feed(one.cache, 3) == EDGEKV_STATUS_OK);
        const Bytes  taken = save(one.cache);
        const size_t begin = number_at<edgekv_snapshot>(taken).rows_begin;
        other.read(policy, 2, 50);
        CHECK(edgekv_cache_restore_numbers(other.cache.get(), taken.data(), begin, nullptr, 0) == EDGEKV_STATUS_OK);
        for (const size_t n : { size_t(61), size_t(1000), taken.size() }) {
            Bytes pieces(taken.size());
            for (size_t at = 0; at < taken.size(); at += n) {
                const size_t there = std::min(n, taken.size() - at);
                CHECK(edgekv_cache_save(one.cache.get(), nullptr, at, pieces.data() + at, there, nullptr, 0) == EDGEKV_STATUS_OK);
            }
            CHECK(pieces == taken);
            for (size_t at = begin; at < taken.size(); at += n) {
                const size_t there = std::min(n, taken.size() - at);
                const Bytes  zeros(there);
                CHECK(edgekv_cache_restore_rows(other.cache.get(), nullptr, at, zeros.data(), there, nullptr, 0) == EDGEKV_STATUS_OK);
            }
            CHECK(save(other.cache) != taken);
            for (size_t at = begin; at < taken.size(); at += n) {
                const size_t there = std::min(n, taken.size() - at);
                CHECK(edgekv_cache_restore_rows(other.cache.get(), nullptr, at, taken.data() + at, there, nullptr, 0) == EDGEKV_STATUS_OK);
            }
            CHECK(save(other.cache) == taken);
        }
        CHECK(read_all(other.cache) == read_all(one.cache) && other.outcome(model).second == one.outcome(model).second);
    }
}

// A cache of other room takes it where it has room for its cells.
void test_other_room(const Model & model, const char * kv_type) {
    const edgekv_policy policy = policies()[2];
    Opened              one(model, kv_type, policy);
    one.read(policy, 6, 10);
    const Bytes         taken = save(one.cache);
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.repositions         = 1;
    CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
    for (const uint32_t n_cells : { budget - 1, budget, 4 * budget }) {
        const Context context(model, kv_type, 1, { sizeof(edgekv_layout), n_cells, n_cells, 0 });
        const Cache   cache = open_cache(context, needs);
        const bool    fits  = n_cells >= budget;
        CHECK(restore(cache, taken) == (fits ? EDGEKV_STATUS_OK : EDGEKV_STATUS_INVALID_ARGUMENT));
        CHECK(!fits || save(cache) == taken);
    }
}

// After other texts, and in another context, as in the cache that went on.
void test_going_on(const Model & model, const char * kv_type) {
    for (const edgekv_policy & policy : policies()) {
        for (const uint32_t n_blocks : { 1u, 9u }) {
            Opened       one(model, kv_type, policy);
            const Staged staged("copies");
            Opened       other(model, kv_type, policy);
            one.read(policy, n_blocks, 10);
            const bool some_since = n_blocks != 1; // the last eviction
            CHECK(!some_since || feed(one.cache, 2) == EDGEKV_STATUS_OK);
            const Bytes taken = save(one.cache);
            one.read(policy, 3, 20);
            const auto expected = one.outcome(model);

            other.read(policy, 2, 50);
            for (Opened * each : { &one, &other }) {
                each->read(policy, 1, 70);
                CHECK(restore(each->cache, taken) == EDGEKV_STATUS_OK);
                CHECK(save(each->cache) == taken);
                each->read(policy, 3, 20);
                const auto found = each->outcome(model);
                CHECK(found.second == expected.second);
                CHECK(read_all(each->cache) == read_all(one.cache) && found.first.size() == expected.first.size());
            }
        }
    }
}

// Before anything else was fed.
void test_a_fresh_cache(const Model & model, const char * kv_type) {
    const edgekv_policy policy = policies()[2];
    Opened              one(model, kv_type, policy), other(model, kv_type, policy);
    one.read(policy, 2, 10);
    CHECK(restore(other.cache, save(one.cache)) == EDGEKV_STATUS_OK);
    for (Opened * each : { &one, &other }) {
        CHECK(compact(each->cache, policy, budget / 2) == EDGEKV_STATUS_OK);
    }
    CHECK(read_all(one.cache) == read_all(other.cache));
    CHECK(one.outcome(model) == other.outcome(model));
}

void test_size(const Model & model, const char * kv_type) {
    const edgekv_policy policy = policies().back();
    Opened              opened(model, kv_type, policy);
    const auto &        shape = opened.cache->shape;
    const size_t        empty = save(opened.cache).size();
    CHECK(empty < 1024);
    CHECK(feed(opened.cache, 1) == EDGEKV_STATUS_OK);
    const size_t one = save(opened.cache).size();
    CHECK(feed(opened.cache, 1) == EDGEKV_STATUS_OK);
    const size_t two = save(opened.cache).size();
    CHECK(two - one >= shape.cell_bytes && two - one < one);
    opened.read(policy, 8, 10);
    CHECK(save(opened.cache).size() < (budget + 3) * (two - one) + n_ubatch * (two - one));
}

void test_refusals(const Model & model, const char * kv_type) {
    const edgekv_policy policy = policies()[2];
    Opened              opened(model, kv_type, policy), other(model, kv_type, policies().back());
    const size_t        n_empty = save(opened.cache).size();
    opened.read(policy, 6, 10);
    CHECK(feed(opened.cache, 2) == EDGEKV_STATUS_OK);
    const Bytes  taken = save(opened.cache);
    const auto   held  = read_all(opened.cache);
    const size_t size  = taken.size();
    const size_t cells = n_empty + 4 * policy.rows; // where they begin

    CHECK(restore(other.cache, taken) == EDGEKV_STATUS_INVALID_ARGUMENT && other.cache->n_past == 0);
    for (const size_t n : { size_t(0), size_t(7), size_t(200), size - 1 }) {
        CHECK(restore(opened.cache, Bytes(taken.begin(), taken.begin() + n)) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    Bytes longer = taken;
    longer.push_back(0);
    CHECK(restore(opened.cache, longer) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(save(opened.cache) == taken);

    // every number before the cells, made too large, too small or another: refused, or a sound cache
    uint32_t n_refused = 0;
    for (size_t at = 0; at < cells; at += 4) {
        for (const uint32_t value : { 0x7FFFFFFFu, 0xFFFFFFFFu, 1u, 77u }) {
            Bytes bytes = taken;
            std::memcpy(bytes.data() + at, &value, sizeof(value));
            const edgekv_status status = restore(opened.cache, bytes);
            CHECK(status == EDGEKV_STATUS_OK || status == EDGEKV_STATUS_INVALID_ARGUMENT);
            n_refused += status != EDGEKV_STATUS_OK;
            CHECK(compact(opened.cache, policy, budget / 2) == EDGEKV_STATUS_OK && feed(opened.cache, 1) == EDGEKV_STATUS_OK);
        }
    }
    CHECK(n_refused > cells / 4 * 3);

    // nor are cells that are in no order
    CHECK(restore(opened.cache, taken) == EDGEKV_STATUS_OK);
    const int32_t positions[2] = { 0, 1 };
    const auto    found        = std::search(taken.begin() + cells, taken.end(), reinterpret_cast<const char *>(positions),
                                             reinterpret_cast<const char *>(positions + 2));
    if (CHECK(found != taken.end())) { // the sinks of the first head
        for (const int32_t value : { 1, -2, 1 << 20 }) {
            Bytes bytes = taken;
            std::memcpy(bytes.data() + (found - taken.begin()), &value, sizeof(value));
            CHECK(restore(opened.cache, bytes) == EDGEKV_STATUS_INVALID_ARGUMENT);
            CHECK(save(opened.cache) == taken);
        }
    }
    CHECK(read_all(opened.cache) == held);

    // nor are keys that are turned to a position that none was given yet
    const auto   header    = number_at<edgekv_snapshot>(taken);
    const size_t n_carried = 2 + header.kind.repositions + header.kind.accumulates + header.kind.wo_norms;
    const size_t turned_to = cells + (header.rows_begin - cells) / n_carried; // behind the true positions
    CHECK(header.kind.repositions == 1 && header.rope_past > 1);
    for (const int32_t value : { header.rope_past - 1, header.rope_past, -1 }) {
        Bytes bytes = taken;
        std::memcpy(bytes.data() + turned_to, &value, sizeof(value));
        CHECK((restore(opened.cache, bytes) == EDGEKV_STATUS_OK) == (value == header.rope_past - 1));
    }
    CHECK(restore(opened.cache, taken) == EDGEKV_STATUS_OK && read_all(opened.cache) == held);

    char       small[8];
    const auto rows_begin = header.rows_begin;
    for (const uint64_t first : { uint64_t(size - 7), uint64_t(size + 1), UINT64_MAX }) {
        CHECK(edgekv_cache_save(opened.cache.get(), nullptr, first, small, 8, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
        CHECK(edgekv_cache_restore_rows(opened.cache.get(), nullptr, first, small, 8, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    }
    CHECK(edgekv_cache_restore_rows(opened.cache.get(), nullptr, rows_begin - 1, small, 1, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_restore_rows(opened.cache.get(), nullptr, 0, small, 8, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_restore_rows(opened.cache.get(), nullptr, rows_begin, nullptr, 8, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_restore_rows(nullptr, nullptr, rows_begin, small, 8, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_save(opened.cache.get(), nullptr, 0, nullptr, size, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_save(nullptr, nullptr, 0, small, sizeof(small), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_restore(opened.cache.get(), taken.data(), rows_begin, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_restore_numbers(opened.cache.get(), taken.data(), size, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_restore_numbers(nullptr, taken.data(), rows_begin, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(save(opened.cache) == taken);
    CHECK(edgekv_cache_restore(opened.cache.get(), nullptr, size, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_restore(nullptr, small, sizeof(small), nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(edgekv_cache_snapshot_bytes(nullptr, nullptr) == 0);
}

// A plan's bytes of a snapshot are those that one has where all cells are used.
void test_estimate(const Model & model, const char * kv_type) {
    const uint32_t     n_cells = 24;
    const Context      context(model, kv_type, 1, { sizeof(edgekv_layout), n_cells, n_cells, 0 });
    edgekv_shape       shape  = {};
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.accumulates         = 1;
    needs.n_query_rows        = 3;
    const Cache cache         = open_cache(context, needs);
    CHECK(edgekv_context_shape(context.ctx, &shape, nullptr, 0) == EDGEKV_STATUS_OK);
    for (uint32_t n = n_cells; n > 0; n -= std::min(n, n_ubatch)) {
        CHECK(feed(cache, std::min(n, n_ubatch)) == EDGEKV_STATUS_OK);
    }
    uint64_t    numbers = 0;
    const Bytes taken   = save(cache);
    CHECK(edgekv_snapshot_estimate_bytes(&shape, &needs, n_cells, &numbers) == taken.size());
    CHECK(numbers == number_at<edgekv_snapshot>(taken).rows_begin);
    CHECK(edgekv_snapshot_estimate_bytes(nullptr, &needs, n_cells, &numbers) == 0);

    CHECK(edgekv_row_bytes(GGML_TYPE_Q8_0, 64) == 68 && edgekv_row_bytes(GGML_TYPE_F32, 3) == 12);
    CHECK(edgekv_row_bytes(GGML_TYPE_Q8_0, 48) == 0 && edgekv_row_bytes(GGML_TYPE_Q5_0, 64) == 0 && edgekv_row_bytes(-1, 64) == 0);
}

// What else fed the context meanwhile is forgotten with the rest.
void test_foreign_cells(const Model & model, const char * kv_type) {
    const edgekv_policy policy = policies()[0];
    Opened              opened(model, kv_type, policy);
    opened.read(policy, 3, 10);
    const Bytes taken    = save(opened.cache);
    llama_token tokens[] = { 1, 2, 3 };
    CHECK(llama_decode(opened.context.ctx, llama_batch_get_one(tokens, 3)) == 0);
    CHECK(feed(opened.cache, 1) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(restore(opened.cache, taken) == EDGEKV_STATUS_OK && feed(opened.cache, 1) == EDGEKV_STATUS_OK);
}

} // namespace

void test_snapshot(const char * model_path, const char * kv_type) {
    const Model model(model_path);
    test_going_on(model, kv_type);
    test_pieces(model, kv_type);
    test_other_room(model, kv_type);
    test_a_fresh_cache(model, kv_type);
    test_size(model, kv_type);
    test_refusals(model, kv_type);
    test_foreign_cells(model, kv_type);
    test_estimate(model, kv_type);
}
