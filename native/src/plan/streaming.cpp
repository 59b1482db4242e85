// What streaming takes and frees, of a model that is planned or loaded.
#include "hooks/status.h"
#include "hooks/streamed_weights.h"
#include "llama-model.h"
#include "plan/process.h"

#include <algorithm>

using namespace edgekv;

namespace {

edgekv_streaming streaming_of(const llama_model & model, const StreamedLayers & layers, const StreamedWeights::Stats & stats) {
    return { layers.n_layers,    layers.n_streamed, model.hparams.n_expert, model.hparams.n_expert_used_max(), stats.n_bytes, stats.n_expert_bytes,
             stats.n_slot_bytes, stats.n_read,      stats.read_ns,          stats.wait_ns };
}

// Such a model has all weights in memory.
bool is_split(const llama_model & model) {
    const auto n_files = model.gguf_kv.find("split.count");
    return n_files != model.gguf_kv.end() && n_files->second != "1";
}

} // namespace

enum edgekv_status edgekv_model_streaming(const struct llama_model * model, struct edgekv_streaming * streaming, char * err,
                                          size_t err_size) {
    return guard(err, err_size, [&] {
        require(model && streaming, "model or streaming is NULL");
        *streaming = {};
        const auto & streamed = model->streamed_weights;
        if (streamed && streamed->layers().n_streamed > 0) {
            *streaming = streaming_of(*model, streamed->layers(), streamed->stats());
        }
    });
}

enum edgekv_status edgekv_parts_stream(const struct llama_model * model, uint32_t n_streamed, uint32_t n_ubatch,
                                       struct edgekv_parts * parts, struct edgekv_streaming * streaming, char * err,
                                       size_t err_size) {
    return guard(err, err_size, [&] {
        require(model && parts && streaming, "model, parts or streaming is NULL");
        const auto & weights   = model->tensors_by_name;
        const auto   is_output = [](const auto & weight) { return weight.first == "output.weight"; };
        const StreamedLayers layers = { model->hparams.n_layer_all, n_streamed, std::any_of(weights.begin(), weights.end(), is_output) };
        if (n_streamed > layers.n_layers) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT, "n_streamed = %u, but the model has %u layers; lower it", n_streamed, layers.n_layers);
        }
        StreamedSizes sizes(layers.n_layers);
        uint64_t      of_tables = 0;
        for (const auto & [name, weight] : weights) {
            const int32_t layer    = layers.layer_of(name, ggml_nrows(weight));
            const bool    is_table = layers.is_table(name) && !is_split(*model);
            if (layer >= 0) {
                sizes.add(static_cast<uint32_t>(layer), *weight);
            }
            of_tables += is_table ? LookedUpWeights::bytes_of_rows(*weight, n_ubatch) : 0;
            if (layer >= 0 || is_table) {
                const ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(weight->buffer);
                uint64_t & held = is_repacked(type) ? parts->repack_bytes : parts->weight_bytes;
                held -= is_streamed(type) ? 0 : GGML_PAD(ggml_backend_buft_get_alloc_size(type, weight), ggml_backend_buft_get_alignment(type));
            }
        }
        const uint64_t slot_bytes = sizes.slots() + sizes.room_for_experts();
        parts->slot_bytes         = slot_bytes + of_tables + (n_streamed > 0 ? StreamedWeights::n_threads * thread_bytes : 0);
        *streaming                = {};
        if (n_streamed > 0) {
            *streaming = streaming_of(*model, layers, { sizes.n_bytes(), sizes.n_expert_bytes(), slot_bytes, 0, 0, 0 });
        }
    });
}
