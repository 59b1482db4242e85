// What lies on each device.
#include "edgekv_devices.h"

#include "abi/context.h"
#include "abi/status.h"
#include "cache/flat_cache.h"
#include "cache/query_window.h"
#include "cache/recurrent_state.h"
#include "device/row_graphs.h"
#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <cstdio>

using namespace edgekv;

namespace {

// The shares of a model's devices, found by what lies there.
class Shares {
  public:
    Shares(const llama_model & model, edgekv_device_share * shares) : model_(model), shares_(shares) {}

    // NULL where it is the host's own memory.
    edgekv_device_share * of(ggml_backend_dev_t device) const {
        const auto & devices = model_.devices;
        const auto   found   = std::find_if(devices.begin(), devices.end(), [&](const auto & it) { return it.dev == device; });
        return found == devices.end() ? nullptr : &shares_[found - devices.begin()];
    }
    edgekv_device_share * of(ggml_backend_buffer_type_t type) const {
        return ggml_backend_buft_is_host(type) ? nullptr : of(ggml_backend_buft_get_device(type));
    }
    edgekv_device_share * of(const ggml_tensor & tensor) const { return of(ggml_backend_buffer_get_type(tensor.buffer)); }

  private:
    const llama_model &   model_;
    edgekv_device_share * shares_;
};

void add_model(const llama_model & model, const Shares & shares) {
    for (uint32_t il = 0; il < model.hparams.n_layer_all; ++il) {
        if (auto * share = shares.of(model.dev_layer(il))) {
            ++share->n_layers;
        }
    }
    if (auto * share = shares.of(model.dev_output())) {
        share->has_output = 1;
    }
}

void add_buffers(const llama_context & ctx, const Shares & shares) {
    for (const auto & [type, held] : llama_get_memory_breakdown(&ctx)) {
        if (auto * share = shares.of(type)) {
            share->weight_bytes += held.model;
            share->kv_bytes += held.context;
            share->compute_bytes += held.compute;
        }
    }
}

void add_states(const llama_memory_i * part, const Shares & shares) {
    if (part == nullptr) {
        return;
    }
    for (const auto & [type, n_bytes] : part->memory_breakdown()) {
        if (auto * share = shares.of(type)) {
            share->state_bytes += n_bytes;
        }
    }
}

// As edgekv_cache_estimate_device_bytes counts them all together.
void add_scoring(const Memory & memory, const edgekv_cache_params & params, const Shares & shares) {
    const FlatCache & flat   = *memory.flat;
    const uint64_t    n_rows = uint64_t(n_text_rows(params.n_query_rows, params.n_draft)) + params.n_probe_rows;
    for (uint32_t p = 0; p < flat.pools().size(); ++p) {
        auto * share = shares.of(*flat.pools()[p].k);
        if (share != nullptr && params.staged != EDGEKV_STAGING_COPIES) {
            share->scoring_bytes += RowGraphs::bytes(flat, p);
        }
    }
    for (const FlatCache::Layer & layer : flat.layers()) {
        if (auto * share = shares.of(*layer.k)) {
            share->scoring_bytes += n_rows * sizeof(float) * layer.n_head() * layer.head_dim_k;
        }
    }
    for (const ggml_tensor * state : memory.recurrent != nullptr ? states_of(*memory.recurrent) : std::vector<ggml_tensor *>()) {
        if (auto * share = shares.of(*state)) {
            share->scoring_bytes += ggml_nbytes(state);
        }
    }
}

} // namespace

enum edgekv_status edgekv_context_devices(const struct llama_context * ctx, const struct edgekv_cache_params * params,
                                          struct edgekv_device_share * shares, size_t n_shares, size_t * n, char * err,
                                          size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && params && n, "ctx, params or n is NULL");
        const llama_model & model = ctx->get_model();
        *n                        = model.devices.size();
        if (shares == nullptr) {
            return;
        }
        require(n_shares >= *n, "shares has no room for all devices");
        const Memory memory = memory_of(ctx);
        std::fill_n(shares, *n, edgekv_device_share{});
        for (size_t i = 0; i < *n; ++i) {
            std::snprintf(shares[i].name, sizeof(shares[i].name), "%s", ggml_backend_dev_name(model.devices[i].dev));
        }
        const Shares found(model, shares);
        add_model(model, found);
        add_buffers(*ctx, found);
        add_states(memory.windows, found);
        add_states(memory.recurrent, found);
        add_scoring(memory, *params, found);
    });
}
