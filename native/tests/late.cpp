// Caches on a device that computes late: what the host copies, frees or divides there is what it would be on a device without delay.
#include "cache_fixture.h"
#include "late_backend.h"
#include "llama-context.h"

namespace {

constexpr llama_token question[] = { 5, 7, 11, 13 };

Cache open_late(const Context & context) {
    edgekv_cache_params needs = edgekv_cache_params_default();
    needs.n_query_rows        = 8;
    needs.n_probe_rows        = 4;
    return open_cache(context, needs);
}

void feed_quietly(const Cache & cache, size_t n) {
    const std::vector<llama_token> tokens(n, 17);
    CHECK(edgekv_cache_feed(cache.get(), tokens.data(), n, 0, nullptr, 0) == EDGEKV_STATUS_OK);
}

std::vector<float> next_logits(const Cache & cache) {
    CHECK(feed(cache, 1) == EDGEKV_STATUS_OK);
    const float * logits = llama_get_logits_ith(cache->ctx, -1);
    return { logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(cache->ctx))) };
}

// Recurrent states are copied when the text was computed, and put back when the probe was.
void test_probe(const Model & model) {
    const Context context(model, "f16");
    const Cache   cache = open_late(context);
    CHECK(cache->shape.device_state_bytes > 0);
    feed_quietly(cache, 16);
    const auto expected = next_logits(cache);

    CHECK(edgekv_cache_clear(cache.get(), nullptr, 0) == EDGEKV_STATUS_OK);
    feed_quietly(cache, 16);
    CHECK(edgekv_cache_probe(cache.get(), question, 4, nullptr, 0, nullptr, 0) == EDGEKV_STATUS_OK);
    CHECK(next_logits(cache) == expected);
}

// A snapshot holds what was fed, and not what the device has computed of it.
void test_save(const Model & model) {
    const Context context(model, "f16");
    const Cache   cache = open_late(context);
    feed_quietly(cache, 16);
    const Bytes taken = save(cache);
    llama_synchronize(cache->ctx);
    CHECK(save(cache) == taken);
}

// What the device still writes to is not freed.
void test_free(const Model & model) {
    const Context context(model, "f16");
    Cache         cache = open_late(context);
    feed_quietly(cache, 16);
    cache.reset();
    CHECK(late::n_freed_early() == 0);
}

// Heads of different memories draw on rows of their own.
void test_holds(const char * path) {
    const Model   model(path, false, late::device(), 2); // the output and the last layer are there
    const Context context(model, "f16", 1, { sizeof(edgekv_layout), 64, 150, 0 });
    const Cache   cache = open_late(context);
    CHECK(cache->shape.n_layer == 2 && cache->shape.n_head_total == 4);
    const auto holds = [&](const std::vector<uint32_t> & cells) {
        int32_t found = -1;
        CHECK(edgekv_cache_holds(cache.get(), cells.data(), cells.size(), &found, nullptr, 0) == EDGEKV_STATUS_OK);
        return found != 0;
    };
    CHECK(holds({ 64, 64, 64, 64 }) && holds({ 100, 28, 0, 128 }));
    CHECK(!holds({ 100, 100, 20, 20 }) && !holds({ 20, 20, 65, 64 }));
    const std::vector<uint32_t> few(3);
    int32_t                     found = -1;
    CHECK(edgekv_cache_holds(cache.get(), few.data(), few.size(), &found, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
}

} // namespace

// MODEL with recurrent states, and a plain one of two layers and two KV heads.
int main(int argc, char ** argv) {
    if (argc < 3) {
        return 2;
    }
    {
        const Model model(argv[1], false, late::device(), 99);
        test_probe(model);
        test_save(model);
        test_free(model);
    }
    test_holds(argv[2]);
    std::puts(n_failed == 0 ? "OK" : "FAILED");
    return n_failed == 0 ? 0 : 1;
}
