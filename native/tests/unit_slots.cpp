// Slots of a context: sequences that share steps hold what they would hold alone, and nothing of each other.
#include "cache_fixture.h"

#include <cmath>

namespace {

constexpr uint32_t budget  = 40;
constexpr uint32_t n_slots = 3;

const edgekv_layout one_slot = { sizeof(edgekv_layout), budget + 2 * n_ubatch, 3 * budget + 2 * n_ubatch, 0, 1 };
const edgekv_layout slots    = { sizeof(edgekv_layout), budget + 2 * n_ubatch, 3 * budget + 2 * n_ubatch, 0, n_slots };

using Logits = std::vector<float>;

edgekv_cache_params needs_of(const edgekv_policy & policy, uint32_t slot = 0) {
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.repositions         = 1;
    needs.n_probe_rows        = 8;
    needs.slot                = slot;
    CHECK(edgekv_cache_params_for(&policy, n_ubatch, 0, &needs, nullptr, 0) == EDGEKV_STATUS_OK);
    return needs;
}

Logits logits_of(const Context & context, const Model & model, int32_t row = -1) {
    const float * logits = llama_get_logits_ith(context.ctx, row);
    return { logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(model.model)) };
}

std::vector<llama_token> text_of(uint32_t salt, size_t first, size_t n) {
    std::vector<llama_token> tokens(n);
    for (size_t i = 0; i < n; ++i) {
        tokens[i] = static_cast<llama_token>((7 * (first + i) + 3 + 13 * salt) % 100);
    }
    return tokens;
}

// A text that is read block by block, with a probe now and then and evictions that reposition every other time.
void read_block(const Cache & cache, const edgekv_policy & policy, uint32_t salt, uint32_t i) {
    const auto block = text_of(salt, edgekv_cache_n_past(cache.get()), n_ubatch - salt);
    CHECK(edgekv_cache_feed(cache.get(), block.data(), block.size(), 1, nullptr, 0) == EDGEKV_STATUS_OK);
    const llama_token probe[2] = { static_cast<llama_token>(salt), 5 };
    CHECK(edgekv_cache_probe(cache.get(), probe, 2, nullptr, 0, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(compact(cache, policy, budget, protecting(2, 3), nullptr, nullptr, i % 2 == 0) == EDGEKV_STATUS_OK);
}

// By how much two rows of logits differ, over their standard deviation.
double distance(const Logits & a, const Logits & b) {
    double sum = 0, squares = 0, most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        sum += a[i];
        squares += double(a[i]) * a[i];
        most = std::max(most, std::fabs(double(a[i]) - b[i]));
    }
    const double mean = sum / a.size();
    return most / std::sqrt(squares / a.size() - mean * mean);
}

// Tokens with logits of the last.
edgekv_part part_of(edgekv_cache * cache, const llama_token * tokens, size_t n = 1) { return { sizeof(edgekv_part), cache, tokens, n, 1, -1 }; }

struct Shared {
    Shared(const Model & model, const char * kv_type, const edgekv_policy & policy, int32_t n_threads = 1) :
        context(model, kv_type, n_threads, slots) {
        for (uint32_t i = 0; i < n_slots; ++i) {
            caches.push_back(open_cache(context, needs_of(policy, i)));
        }
    }

    std::vector<edgekv_part> parts(const std::vector<std::vector<llama_token>> & tokens) const {
        std::vector<edgekv_part> all;
        for (size_t i = 0; i < tokens.size(); ++i) {
            if (!tokens[i].empty()) {
                all.push_back(part_of(caches[i].get(), tokens[i].data(), tokens[i].size()));
            }
        }
        return all;
    }

    Context            context;
    std::vector<Cache> caches;
};

struct Alone {
    Alone(const Model & model, const char * kv_type, const edgekv_policy & policy) :
        context(model, kv_type, 1, one_slot), cache(open_cache(context, needs_of(policy))) {}

    Context context;
    Cache   cache;
};

// Fed by turns, slots hold bit for bit what caches of their own would: snapshots, logits, and what goes on from a snapshot.
void test_turns(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    const Shared       shared(model, kv_type, policy);
    std::vector<Bytes> states;
    for (uint32_t block = 0; block < 4; ++block) {
        for (uint32_t i = 0; i < n_slots; ++i) {
            read_block(shared.caches[i], policy, i, block);
        }
    }
    for (uint32_t i = 0; i < n_slots; ++i) {
        const Alone alone(model, kv_type, policy);
        for (uint32_t block = 0; block < 4; ++block) {
            read_block(alone.cache, policy, i, block);
        }
        CHECK(save(alone.cache) == save(shared.caches[i]));
        CHECK(feed(alone.cache, 3) == EDGEKV_STATUS_OK && feed(shared.caches[i], 3) == EDGEKV_STATUS_OK);
        CHECK(logits_of(alone.context, model) == logits_of(shared.context, model));
        states.push_back(save(alone.cache));
    }
    // a slot is emptied, filled with another's state, and goes on as that one; the others do not notice
    CHECK(edgekv_cache_clear(shared.caches[1].get(), nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(save(shared.caches[0]) == states[0] && save(shared.caches[2]) == states[2]);
    CHECK(restore(shared.caches[1], states[2]) == EDGEKV_STATUS_OK);
    CHECK(feed(shared.caches[1], 2) == EDGEKV_STATUS_OK);
    const Logits moved = logits_of(shared.context, model);
    CHECK(feed(shared.caches[2], 2) == EDGEKV_STATUS_OK && logits_of(shared.context, model) == moved);
    CHECK(save(shared.caches[1]) == save(shared.caches[2]) && save(shared.caches[0]) == states[0]);
}

// Fed together, they hold the same cells, and rows and logits but for the rounding of products.
void test_together(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    const Shared                          shared(model, kv_type, policy);
    std::vector<std::unique_ptr<Alone>>   alone;
    const size_t                          sizes[][n_slots] = { { 9, 1, 12 }, { 1, 1, 1 }, { 1, 0, 8 }, { 1, 1, 1 }, { 0, 1, 1 }, { 2, 3, 5 } };
    for (uint32_t i = 0; i < n_slots; ++i) {
        alone.push_back(std::make_unique<Alone>(model, kv_type, policy));
        read_block(shared.caches[i], policy, i, 0);
        read_block(alone[i]->cache, policy, i, 0);
    }
    const double bound = 0.2; // weights of four bits round most, to 0.09; another token's are 1 apart or more
    for (const auto & size : sizes) {
        std::vector<std::vector<llama_token>> tokens;
        for (uint32_t i = 0; i < n_slots; ++i) {
            tokens.push_back(text_of(i + 5, edgekv_cache_n_past(shared.caches[i].get()), size[i]));
        }
        std::vector<edgekv_part> parts = shared.parts(tokens);
        CHECK(edgekv_cache_feed_together(parts.data(), parts.size(), nullptr, 0) == EDGEKV_STATUS_OK);
        for (size_t p = 0, i = 0; i < n_slots; ++i) {
            if (size[i] == 0) {
                continue;
            }
            CHECK(edgekv_cache_feed(alone[i]->cache.get(), tokens[i].data(), size[i], 1, nullptr, 0) == EDGEKV_STATUS_OK);
            const Logits own = logits_of(alone[i]->context, model), in_step = logits_of(shared.context, model, parts[p].logits_row);
            CHECK(distance(own, in_step) < bound);
            CHECK(edgekv_cache_n_past(alone[i]->cache.get()) == edgekv_cache_n_past(shared.caches[i].get()));
            ++p;
        }
    }
    for (uint32_t i = 0; i < n_slots; ++i) {
        CHECK(compact(alone[i]->cache, policy, budget) == EDGEKV_STATUS_OK && compact(shared.caches[i], policy, budget) == EDGEKV_STATUS_OK);
        const std::vector<Head> own = read_all(alone[i]->cache), in_step = read_all(shared.caches[i]);
        size_t n_same = 0, n = 0;
        for (size_t h = 0; h < own.size(); ++h) {
            for (const int32_t position : own[h].positions) {
                n_same += std::count(in_step[h].positions.begin(), in_step[h].positions.end(), position);
                ++n;
            }
        }
        CHECK(n_same >= n - n / 50); // scores that are nearly equal may change places
    }
}

// A draft can be accepted until another cache of the context has the logits: these are of its tokens then.
void test_drafts_of_several(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    const Context      context(model, kv_type, 1, slots);
    std::vector<Cache> caches;
    for (uint32_t i = 0; i < 2; ++i) {
        edgekv_cache_params needs = needs_of(policy, i);
        needs.n_draft             = 2;
        caches.push_back(open_cache(context, needs));
        CHECK(feed(caches[i], 8) == EDGEKV_STATUS_OK);
    }
    edgekv_cache *    a = caches[0].get(), *b = caches[1].get();
    const llama_token token = 3, draft[2] = { 4, 5 }, unknown = -1;
    edgekv_part       part = part_of(b, &token);
    const auto accepted_after = [&](const auto & other) {
        CHECK(edgekv_cache_feed_draft(a, token, draft, 2, nullptr, 0) == EDGEKV_STATUS_OK);
        CHECK(edgekv_cache_accept(a, nullptr, 0) == EDGEKV_STATUS_OK);
        other();
        const Bytes before = save(caches[0]);
        const auto  status = edgekv_cache_accept(a, nullptr, 0);
        CHECK(status == EDGEKV_STATUS_OK || save(caches[0]) == before);
        CHECK(edgekv_cache_feed(a, &token, 1, 1, nullptr, 0) == EDGEKV_STATUS_OK); // it goes on
        CHECK(compact(caches[0], policy, 8) == EDGEKV_STATUS_OK && compact(caches[1], policy, 8) == EDGEKV_STATUS_OK);
        return status;
    };
    CHECK(accepted_after([] {}) == EDGEKV_STATUS_OK);
    CHECK(accepted_after([&] { edgekv_cache_feed(b, &unknown, 1, 1, nullptr, 0); }) == EDGEKV_STATUS_OK); // nothing was computed
    CHECK(accepted_after([&] { edgekv_cache_feed(b, &token, 1, 1, nullptr, 0); }) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(accepted_after([&] { edgekv_cache_feed(b, &token, 1, 0, nullptr, 0); }) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(accepted_after([&] { edgekv_cache_feed_draft(b, token, draft, 2, nullptr, 0); }) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(accepted_after([&] { edgekv_cache_probe(b, draft, 2, nullptr, 0, nullptr, 0); }) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(accepted_after([&] { edgekv_cache_feed_together(&part, 1, nullptr, 0); }) == EDGEKV_STATUS_INVALID_STATE);
}

// Sums of a step do not depend on the number of threads.
void test_threads(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    std::vector<Logits> logits;
    for (const int32_t n_threads : { 1, 3 }) {
        const Shared shared(model, kv_type, policy, n_threads);
        const std::vector<std::vector<llama_token>> tokens = { text_of(0, 0, 20), text_of(1, 0, 3), text_of(2, 0, 1) };
        std::vector<edgekv_part>                    parts  = shared.parts(tokens);
        CHECK(edgekv_cache_feed_together(parts.data(), parts.size(), nullptr, 0) == EDGEKV_STATUS_OK);
        logits.push_back(logits_of(shared.context, model, parts[1].logits_row));
    }
    CHECK(logits[0] == logits[1]);
}

void test_refusals(const Model & model, const char * kv_type, const edgekv_policy & policy) {
    const Shared       shared(model, kv_type, policy);
    edgekv_cache *     cache  = nullptr;
    edgekv_cache_params again = needs_of(policy, 1), beyond = needs_of(policy, n_slots);
    CHECK(edgekv_cache_open(shared.context.ctx, &again, &cache, nullptr, 0) == EDGEKV_STATUS_INVALID_STATE);
    CHECK(edgekv_cache_open(shared.context.ctx, &beyond, &cache, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);

    read_block(shared.caches[0], policy, 0, 0);
    read_block(shared.caches[1], policy, 1, 0);
    const Bytes first = save(shared.caches[0]), second = save(shared.caches[1]);
    const auto  refused = [&](std::vector<edgekv_part> parts, edgekv_status expected) {
        CHECK(edgekv_cache_feed_together(parts.data(), parts.size(), nullptr, 0) == expected);
        CHECK(save(shared.caches[0]) == first && save(shared.caches[1]) == second);
    };
    const llama_token token = 3, unknown = -1;
    const auto        many = text_of(0, 0, n_ubatch);
    edgekv_cache *    a = shared.caches[0].get(), *b = shared.caches[1].get();
    refused({}, EDGEKV_STATUS_INVALID_ARGUMENT);
    refused({ part_of(a, &token), part_of(a, &token) }, EDGEKV_STATUS_INVALID_ARGUMENT);
    refused({ part_of(a, &token), part_of(nullptr, &token) }, EDGEKV_STATUS_INVALID_ARGUMENT);
    refused({ part_of(a, &token), part_of(b, &unknown) }, EDGEKV_STATUS_INVALID_ARGUMENT);
    refused({ part_of(a, &token), part_of(b, &token, 0) }, EDGEKV_STATUS_INVALID_ARGUMENT);
    refused({ part_of(a, many.data(), many.size()), part_of(b, many.data(), 4) }, EDGEKV_STATUS_INVALID_ARGUMENT);
    const Alone other(model, kv_type, policy);
    refused({ part_of(a, &token), part_of(other.cache.get(), &token) }, EDGEKV_STATUS_INVALID_ARGUMENT);

    edgekv_layout        layout = slots;
    llama_context_params params = llama_context_default_params();
    llama_context *      ctx    = nullptr;
    layout.n_slots              = EDGEKV_MOST_SLOTS + 1;
    params.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    CHECK(edgekv_context_new(model.model, &params, &layout, &ctx, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
}

} // namespace

void test_slots(const char * model_path, const char * kv_type) {
    const Model                model(model_path);
    std::vector<edgekv_policy> policies = { policy_of(EDGEKV_BASE_KEYDIFF), policy_of(EDGEKV_BASE_H2O), policy_of(EDGEKV_BASE_SNAPKV) };
    policies.back().spread    = EDGEKV_SPREAD_LAYER;
    policies.back().safeguard = 0.2;
    for (const edgekv_policy & policy : policies) {
        test_turns(model, kv_type, policy);
        test_together(model, kv_type, policy);
    }
    test_threads(model, kv_type, policies[0]);
    test_drafts_of_several(model, kv_type, policies[0]);
    test_refusals(model, kv_type, policies[0]);
}
