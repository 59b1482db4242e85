// Bytes on each device.
#include "edgekv_devices.h"

#include "cache/query_window.h"
#include "cache/staging.h"
#include "device/row_graphs.h"
#include "ggml-backend.h"
#include "hooks/given.h"
#include "hooks/status.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "rows/flat_cache.h"
#include "rows/memory.h"
#include "rows/recurrent_state.h"

#include <algorithm>
#include <cstdio>

using namespace edgekv;

namespace {

// The usage of a model's devices, found by what lies there.
class Usages {
  public:
    Usages(const llama_model & model, edgekv_device_usage * usages) : model_(model), usages_(usages) {}

    // NULL if it is the host's own memory.
    edgekv_device_usage * of(ggml_backend_dev_t device) const {
        const auto & devices = model_.devices;
        const auto   found   = std::find_if(devices.begin(), devices.end(), [&](const auto & it) { return it.dev == device; });
        return found == devices.end() ? nullptr : &usages_[found - devices.begin()];
    }
    edgekv_device_usage * of(ggml_backend_buffer_type_t type) const {
        return ggml_backend_buft_is_host(type) ? nullptr : of(ggml_backend_buft_get_device(type));
    }
    edgekv_device_usage * of(const ggml_tensor & tensor) const { return of(ggml_backend_buffer_get_type(tensor.buffer)); }

  private:
    const llama_model &   model_;
    edgekv_device_usage * usages_;
};

void add_model(const llama_model & model, const Usages & usages) {
    for (uint32_t il = 0; il < model.hparams.n_layer_all; ++il) {
        if (auto * usage = usages.of(model.dev_layer(il))) {
            ++usage->n_layers;
        }
    }
    if (auto * usage = usages.of(model.dev_output())) {
        usage->has_output = 1;
    }
}

void add_buffers(const llama_context & ctx, const Usages & usages) {
    for (const auto & [type, held] : llama_get_memory_breakdown(&ctx)) {
        if (auto * usage = usages.of(type)) {
            usage->weight_bytes += held.model;
            usage->kv_bytes += held.context;
            usage->compute_bytes += held.compute;
        }
    }
}

void add_states(const llama_memory_i * part, const Usages & usages) {
    if (part == nullptr) {
        return;
    }
    for (const auto & [type, n_bytes] : part->memory_breakdown()) {
        if (auto * usage = usages.of(type)) {
            usage->state_bytes += n_bytes;
        }
    }
}

// As edgekv_cache_estimate_device_bytes counts them all together.
void add_scoring(const Memory & memory, const edgekv_cache_params & params, const Usages & usages) {
    const FlatCache & flat   = *memory.flat;
    const uint64_t    n_rows = n_text_rows(params.n_query_rows, params.n_draft) + params.n_probe_rows;
    for (uint32_t p = 0; p < flat.pools().size(); ++p) {
        auto * usage = usages.of(*flat.pools()[p].k);
        if (usage != nullptr && staging() != Staging::copies) {
            usage->scoring_bytes += RowGraphs::bytes(flat, p);
        }
    }
    for (const FlatCache::Layer & layer : flat.layers()) {
        if (auto * usage = usages.of(*layer.k)) {
            usage->scoring_bytes += n_rows * sizeof(float) * layer.n_head() * layer.head_dim_k;
        }
    }
    for (const ggml_tensor * state : memory.recurrent != nullptr ? states_of(*memory.recurrent) : std::vector<ggml_tensor *>()) {
        if (auto * usage = usages.of(*state)) {
            usage->scoring_bytes += ggml_nbytes(state);
        }
    }
}

} // namespace

enum edgekv_status edgekv_context_devices(const struct llama_context * ctx, const struct edgekv_cache_params * params,
                                          struct edgekv_device_usage * usages, size_t n_usages, size_t * n, char * err,
                                          size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && params && n, "ctx, params or n is NULL");
        const edgekv_cache_params needs = given(*params);
        const llama_model & model = ctx->get_model();
        *n                        = model.devices.size();
        if (usages == nullptr) {
            return;
        }
        require(n_usages >= *n, "usages has no room for all devices");
        const Memory memory = memory_of(ctx);
        std::fill_n(usages, *n, edgekv_device_usage{});
        for (size_t i = 0; i < *n; ++i) {
            std::snprintf(usages[i].name, sizeof(usages[i].name), "%s", ggml_backend_dev_name(model.devices[i].dev));
        }
        const Usages found(model, usages);
        add_model(model, found);
        add_buffers(*ctx, found);
        add_states(memory.windows, found);
        add_states(memory.recurrent, found);
        add_scoring(memory, needs, found);
    });
}
