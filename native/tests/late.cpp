// Caches on a device that computes late: what the host copies, frees or divides there is what it would be on a device without delay.
#include "cache_fixture.h"
#include "edgekv_archive.h"
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

struct CloseFile {
    void operator()(std::FILE * file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

Bytes read_file(const File & file) {
    Bytes bytes(1 << 20);
    std::rewind(file.get());
    bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file.get()));
    return bytes;
}

// What an archive took of a block is written while the next block waits to be computed, and is what an archive has that writes at once.
void test_archive(const char * path) {
    const Model          model(path, false, late::device(), 99);
    const Context        context(model, "f16", 1, layout_for(n_ubatch, n_ubatch, 4, 0, 4096));
    const edgekv_policy  policy = policy_of(EDGEKV_BASE_KEYDIFF);
    const Cache          cache  = open_late(context);
    std::map<bool, Bytes> written, cells;
    for (const bool later : { false, true }) {
        const File       file(std::tmpfile());
        edgekv_archive * archive = nullptr;
        CHECK(edgekv_cache_clear(cache.get(), nullptr, 0) == EDGEKV_STATUS_OK);
        CHECK(edgekv_archive_open(cache.get(), fileno(file.get()), 0, UINT64_MAX, &archive, nullptr, 0) == EDGEKV_STATUS_OK);
        feed_quietly(cache, n_ubatch);
        for (int i = 0; i < 6; ++i) {
            feed_quietly(cache, n_ubatch);
            if (later) {
                const size_t n_graphs = late::n_waiting();
                CHECK(n_graphs > 0 && edgekv_archive_write(archive, nullptr, 0) == EDGEKV_STATUS_OK); // of the blocks before
                CHECK(late::n_waiting() == n_graphs && edgekv_archive_end(archive) == (i == 0 ? 0 : cache->n_past - int(n_ubatch)));
                CHECK(edgekv_archive_take(archive, cache.get(), 2 * n_ubatch, nullptr, 0) == EDGEKV_STATUS_OK);
                CHECK(edgekv_archive_end(archive) < cache->n_past);
            } else {
                CHECK(edgekv_archive_append(archive, cache.get(), nullptr, 0) == EDGEKV_STATUS_OK);
            }
            CHECK(compact(cache, policy, n_ubatch) == EDGEKV_STATUS_OK);
        }
        CHECK(edgekv_archive_write(archive, nullptr, 0) == EDGEKV_STATUS_OK && edgekv_archive_end(archive) == cache->n_past);
        edgekv_archive_free(archive);
        written[later] = read_file(file);
        cells[later]   = save(cache);
    }
    CHECK(!written[false].empty() && written[true] == written[false] && cells[true] == cells[false]);
}

// Rows that were taken and not written are cut as those that were written.
void test_cut(const char * path) {
    const Model      model(path, false, late::device(), 99);
    const Context    context(model, "f16");
    const Cache      cache = open_late(context);
    const File       file(std::tmpfile());
    edgekv_archive * archive = nullptr;
    CHECK(edgekv_archive_open(cache.get(), fileno(file.get()), 0, UINT64_MAX, &archive, nullptr, 0) == EDGEKV_STATUS_OK);
    const auto taken = [&] { return edgekv_archive_take(archive, cache.get(), 256, nullptr, 0) == EDGEKV_STATUS_OK; };
    const auto written = [&] { return edgekv_archive_write(archive, nullptr, 0) == EDGEKV_STATUS_OK; };
    for (int i = 0; i < 5; ++i) { // more than a segment
        feed_quietly(cache, n_ubatch);
    }
    CHECK(taken());
    edgekv_archive * copy = nullptr;
    CHECK(edgekv_archive_copy(archive, &copy, nullptr, 0) == EDGEKV_STATUS_OK && edgekv_archive_end(copy) == 0);
    edgekv_archive_free(copy);
    const File other(std::tmpfile());
    CHECK(edgekv_archive_branch(archive, cache.get(), 0, fileno(other.get()), UINT64_MAX, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
    edgekv_archive_cut(archive, 140);
    CHECK(written() && edgekv_archive_end(archive) == 140);
    CHECK(taken());
    edgekv_archive_cut(archive, 128);
    CHECK(written() && edgekv_archive_end(archive) == 128);
    CHECK(taken() && taken() && edgekv_archive_end(archive) == cache->n_past); // what was taken is written before more is
    edgekv_archive_free(archive);
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
    test_archive(argv[2]);
    test_cut(argv[2]);
    std::puts(n_failed == 0 ? "OK" : "FAILED");
    return n_failed == 0 ? 0 : 1;
}
