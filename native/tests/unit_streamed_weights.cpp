// Weights that are read from the model's file when their turn comes: what is computed is the same to the bit, and a file that is not
// what it was ends a batch with an error and changes no cell.
#include "cache_fixture.h"
#include "ggml-cpp.h"
#include "hooks/looked_up_weights.h"
#include "hooks/parallel_reads.h"
#include "hooks/streamed_weights.h"
#include "llama-model.h"

#include <filesystem>
#include <fstream>
#include <thread>

using namespace edgekv;

namespace {

const edgekv_cache_params needs = [] {
    edgekv_cache_params params = edgekv_cache_params_default();
    params.n_query_rows        = 8;
    params.values              = 1;
    params.wo_norms            = 1;
    return params;
}();

llama_context * new_context(llama_model * model, int32_t n_threads) {
    llama_context_params params = llama_context_default_params();
    params.n_batch = params.n_ubatch = n_ubatch;
    params.n_seq_max                 = 1;
    params.n_threads = params.n_threads_batch = n_threads;
    params.flash_attn_type                    = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    const edgekv_layout layout                = { sizeof(edgekv_layout), 256, 256, 0 };
    llama_context *     ctx                   = nullptr;
    CHECK(edgekv_context_new(model, &params, &layout, &ctx, nullptr, 0) == EDGEKV_STATUS_OK);
    return ctx;
}

// A model of which layers are streamed, and a context.
struct Streamed {
    Streamed(const char * path, uint32_t n_streamed, int32_t n_threads = 1, bool repack = false, bool maps = false) {
        llama_model_params params = llama_model_default_params();
        params.n_gpu_layers       = 0;
        params.use_extra_bufts    = repack;
        params.load_mode          = maps ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
        char err[512]             = "";
        if (!CHECK(edgekv_model_load(path, &params, n_streamed, &model, err, sizeof(err)) == EDGEKV_STATUS_OK)) {
            std::fprintf(stderr, "%s: %s\n", path, err);
            std::exit(1);
        }
        context.emplace(model, n_threads);
    }
    ~Streamed() {
        context.reset();
        llama_model_free(model);
    }

    struct Held {
        Held(llama_model * model, int32_t n_threads) : ctx(new_context(model, n_threads)) {
            edgekv_cache * opened = nullptr;
            CHECK(edgekv_cache_open(ctx, &needs, &opened, nullptr, 0) == EDGEKV_STATUS_OK);
            cache.reset(opened);
        }
        ~Held() {
            cache.reset();
            llama_free(ctx);
        }
        llama_context * ctx;
        Cache           cache;
    };

    llama_model *       model = nullptr;
    std::optional<Held> context;
};

std::vector<float> logits_of(const Streamed::Held & held) {
    const float * values = llama_get_logits_ith(held.ctx, -1);
    return { values, values + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(held.ctx))) };
}

edgekv_policy critical() {
    edgekv_policy policy = policy_of(EDGEKV_BASE_SNAPKV);
    policy.critical      = 1;
    policy.alpha         = 0.5f;
    policy.epsilon       = 1e-4f;
    return policy;
}

struct Outcome {
    std::vector<std::vector<float>> logits;
    std::vector<Head>               heads;
    bool operator==(const Outcome & other) const { return logits == other.logits && heads == other.heads; }
};

// Blocks, single tokens, and a compaction that reads W_O.
Outcome run(const Streamed::Held & held) {
    Outcome outcome;
    for (const size_t n : { n_ubatch, 20u, 1u, 1u, n_ubatch, 1u }) {
        CHECK(feed(held.cache, n) == EDGEKV_STATUS_OK);
        outcome.logits.push_back(logits_of(held));
    }
    CHECK(compact(held.cache, critical(), 40) == EDGEKV_STATUS_OK);
    outcome.heads = read_all(held.cache);
    CHECK(feed(held.cache, 5) == EDGEKV_STATUS_OK);
    outcome.logits.push_back(logits_of(held));
    return outcome;
}

edgekv_streaming streaming_of(const llama_model * model) {
    edgekv_streaming streaming;
    CHECK(edgekv_model_streaming(model, &streaming, nullptr, 0) == EDGEKV_STATUS_OK);
    return streaming;
}

void test_same_outcome(const char * path) {
    const Streamed mapped(path, 0, 1, false, true), resident(path, 0);
    const Outcome  expected = run(*mapped.context);
    const uint32_t n_layers = resident.model->hparams.n_layer_all;
    CHECK(run(*resident.context) == expected);
    CHECK(streaming_of(resident.model).n_layers == 0);
    for (uint32_t n_streamed = 1; n_streamed <= n_layers; ++n_streamed) {
        for (const int32_t n_threads : { 1, 3 }) {
            const Streamed streamed(path, n_streamed, n_threads);
            CHECK(run(*streamed.context) == expected);
            const auto streaming = streaming_of(streamed.model);
            CHECK(streaming.n_layers == n_layers && streaming.n_streamed == n_streamed);
            CHECK(streaming.read_bytes >= streaming.streamed_bytes && streaming.slot_bytes <= streaming.streamed_bytes + 4096);
            CHECK(streaming.expert_bytes == 0);
        }
    }
}

// What a plan takes out of the weights is what a loaded model does without.
void test_parts(const char * path) {
    for (const bool repack : { false, true }) {
        llama_model_params params = llama_model_default_params();
        params.n_gpu_layers       = 0;
        params.use_extra_bufts    = repack;
        params.no_alloc           = true;
        params.load_mode          = LLAMA_LOAD_MODE_NONE; // a mapping counts the file's padding
        llama_model * all         = nullptr;
        CHECK(edgekv_model_load(path, &params, 0, &all, nullptr, 0) == EDGEKV_STATUS_OK);
        llama_context * ctx      = new_context(all, 1);
        const uint32_t  n_layers = all->hparams.n_layer_all;
        edgekv_memory   before;
        CHECK(edgekv_context_memory(ctx, &before, nullptr, 0) == EDGEKV_STATUS_OK);
        for (uint32_t n_streamed = 0; n_streamed <= n_layers; ++n_streamed) {
            edgekv_parts parts = {};
            parts.weight_bytes = before.weight_bytes;
            parts.repack_bytes = before.repack_bytes;
            edgekv_streaming planned;
            CHECK(edgekv_parts_stream(all, n_streamed, n_ubatch, &parts, &planned, nullptr, 0) == EDGEKV_STATUS_OK);
            const Streamed streamed(path, n_streamed, 1, repack);
            edgekv_memory  memory;
            CHECK(edgekv_context_memory(streamed.context->ctx, &memory, nullptr, 0) == EDGEKV_STATUS_OK);
            const auto found = streaming_of(streamed.model);
            CHECK(memory.weight_bytes == parts.weight_bytes + found.slot_bytes && memory.repack_bytes == parts.repack_bytes);
            CHECK(planned.slot_bytes == found.slot_bytes && planned.streamed_bytes == found.streamed_bytes);
            CHECK(parts.slot_bytes >= found.slot_bytes);
        }
        edgekv_parts     parts = {};
        edgekv_streaming planned;
        CHECK(edgekv_parts_stream(all, n_layers + 1, n_ubatch, &parts, &planned, nullptr, 0) == EDGEKV_STATUS_INVALID_ARGUMENT);
        llama_free(ctx);
        llama_model_free(all);
    }
}

// A file that is cut while its model runs ends the batch, and its cells stay; when it is whole again, feeding goes on.
void test_failure(const char * path) {
    const std::string copy = std::string(path) + ".streamed";
    std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
    const auto written = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
    std::filesystem::last_write_time(copy, written);
    {
        const Streamed whole(path, 0);
        const Streamed streamed(copy.c_str(), whole.model->hparams.n_layer_all, 2);
        const auto     feed_both = [&](size_t n) {
            CHECK(feed(whole.context->cache, n) == EDGEKV_STATUS_OK && feed(streamed.context->cache, n) == EDGEKV_STATUS_OK);
            CHECK(logits_of(*whole.context) == logits_of(*streamed.context));
        };
        feed_both(20);
        const auto before = read_all(streamed.context->cache);
        std::filesystem::resize_file(copy, 100);
        std::string message;
        for (int i = 0; i < 2; ++i) {
            CHECK(feed(streamed.context->cache, 9, &message) == EDGEKV_STATUS_MODEL_INVALID);
            CHECK(message.find("was changed after it was loaded") != std::string::npos);
            CHECK(read_all(streamed.context->cache) == before && edgekv_cache_n_past(streamed.context->cache.get()) == 20);
        }
        std::ifstream source(path, std::ios::binary);
        std::ofstream(copy, std::ios::binary | std::ios::in | std::ios::out) << source.rdbuf();
        std::filesystem::last_write_time(copy, written);
        feed_both(9);
        std::filesystem::remove(copy); // the open file stays
        feed_both(1);
    }
    std::filesystem::remove(copy);
}

// Two contexts of one model take turns with the slots, batch by batch.
void test_two_at_once(const char * path) {
    const Streamed       resident(path, 0);
    const Outcome        expected = run(*resident.context);
    const Streamed       streamed(path, resident.model->hparams.n_layer_all);
    const Streamed::Held other(streamed.model, 2);
    Outcome              found;
    std::thread          beside([&] { found = run(other); });
    CHECK(run(*streamed.context) == expected);
    beside.join();
    CHECK(found == expected);
}

void test_refusals(const char * path) {
    llama_model_params params  = llama_model_default_params();
    llama_model *      model   = nullptr;
    const auto         load    = [&](uint32_t n) { return edgekv_model_load(path, &params, n, &model, nullptr, 0); };
    params.n_gpu_layers        = 0;
    CHECK(load(1000) == EDGEKV_STATUS_INVALID_ARGUMENT);
    params.n_gpu_layers = 1;
    CHECK(load(1) == EDGEKV_STATUS_INVALID_ARGUMENT);
    const llama_model_tensor_buft_override overrides[] = { {} };
    params.n_gpu_layers                                = 0;
    params.tensor_buft_overrides                       = overrides;
    CHECK(load(1) == EDGEKV_STATUS_INVALID_ARGUMENT);
    CHECK(model == nullptr);
}

void test_names() {
    const StreamedLayers layers = { 4, 2, true }; // 1 and 3
    CHECK(layers.layer_of("blk.1.ffn_up.weight", 8) == 1 && layers.layer_of("blk.3.attn_q.weight", 8) == 3);
    CHECK(layers.layer_of("blk.1.attn_sinks.weight", 1) == -1); // a vector
    for (const char * stays : { "blk.0.ffn_up.weight", "blk.1.attn_norm.weight", "blk.10.ffn_up.weight", "output.weight", "blk.1x.y" }) {
        CHECK(layers.layer_of(stays, 8) == -1);
    }
    CHECK(StreamedLayers({ 4, 0, true }).layer_of("blk.1.ffn_up.weight", 8) == -1);
    CHECK(!StreamedLayers({ 4, 2, false }).is_table("token_embd.weight")); // which is the output matrix, too
    CHECK(!layers.is_table("output.weight"));
    for (const uint32_t n_streamed : { 0, 2 }) { // whether layers are streamed or not
        CHECK(StreamedLayers({ 4, n_streamed, true }).is_table("token_embd.weight") == LookedUpWeights::works);
    }
}

// Of experts no more stay than there is room for, and those that were chosen last.
void test_room_of_experts(const char * path) {
    const std::string      file = std::string(path) + ".experts";
    const ggml_context_ptr whole(ggml_init({ 1 << 20, nullptr, false })), addresses(ggml_init({ 1 << 20, nullptr, true }));
    gguf_context_ptr       gguf(gguf_init_empty());
    ggml_tensor *          weights[2];
    for (const int i : { 0, 1 }) {
        ggml_tensor * data = ggml_new_tensor_3d(whole.get(), GGML_TYPE_F32, 64, 32, 4);
        std::fill_n(static_cast<float *>(data->data), ggml_nelements(data), float(i));
        weights[i] = ggml_dup_tensor(addresses.get(), data);
        for (ggml_tensor * named : { data, weights[i] }) {
            ggml_format_name(named, "experts.%d", i);
        }
        gguf_add_tensor(gguf.get(), data);
    }
    CHECK(gguf_write_to_file(gguf.get(), file.c_str(), false));
    {
        const auto      opened = WeightsFile::open(file.c_str(), true);
        ParallelReads   pieces(opened);
        LookedUpWeights looked_up(opened, pieces);
        for (ggml_tensor * weight : weights) {
            looked_up.add_experts(*weight);
        }
        looked_up.set_room(LookedUpWeights::bytes_of_experts(*weights[0])); // those of one weight
        const auto reads = [&](int i, int32_t expert) {
            ggml_tensor * column = ggml_new_tensor_3d(whole.get(), GGML_TYPE_F32, 64, 1, 1);
            ggml_tensor * chosen = ggml_new_tensor_2d(whole.get(), GGML_TYPE_I32, 1, 1);

            *static_cast<int32_t *>(chosen->data) = expert;
            const ggml_tensor * node   = ggml_mul_mat_id(whole.get(), weights[i], column, chosen);
            const uint64_t      before = looked_up.n_read();
            CHECK(looked_up.read_for(*weights[i], *node) == 0);
            return looked_up.n_read() > before;
        };
        CHECK(reads(0, 0) && reads(0, 1) && reads(0, 2) && reads(0, 3));
        CHECK(!reads(0, 0)); // it is there
        CHECK(reads(1, 0));  // in the place of 1, which was chosen longest ago
        CHECK(!reads(0, 0) && reads(0, 1));
    }
    std::filesystem::remove(file);
}

} // namespace

void test_streamed_weights(const char * path) {
    test_names();
    test_same_outcome(path);
    test_parts(path);
    if (LookedUpWeights::works) { // elsewhere the layers of a small model stay in their slots, and nothing is read again
        test_failure(path);
        test_room_of_experts(path);
    }
    test_two_at_once(path);
    test_refusals(path);
}
