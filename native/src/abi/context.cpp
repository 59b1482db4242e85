// Models and contexts: llama.cpp's calls with its reasons as text and its aborts as a status.
#include "abi/context.h"

#include "abi/reasons.h"
#include "abi/status.h"
#include "abi/weights_file.h"
#include "cache/flat_cache.h"
#include "cache/recurrent_state.h"
#include "device/row_graphs.h"
#include "llama-context.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

namespace edgekv {

namespace {

// Why a model cannot be run whatever its memory is, or NULL.
const char * obstacle(const llama_model & model) {
    const llama_hparams & hparams = model.hparams;
    if (hparams.is_mla() && llm_arch_is_hybrid(model.arch)) {
        return "latents beside recurrent states";
    }
    if (model.arch == LLM_ARCH_HY_V4) {
        return "a KV cache of another kind"; // a plain one in files without an index, but made where no hook asks for ours
    }
    if (llama_model_has_encoder(&model) || !hparams.causal_attn) {
        return "an encoder or non-causal attention";
    }
    if (hparams.use_alibi) {
        return "ALiBi, whose mask depends on the distance between cells";
    }
    if (hparams.ple_n_heads > 0) {
        return "n-gram embeddings, which look up evicted tokens";
    }
    return nullptr;
}

// Throws Error where there is a reason.
void refuse(const llama_model & model, const char * reason) {
    if (reason != nullptr) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "architecture '%s' uses %s, which is not supported yet; choose a model of the llama, qwen2, "
             "qwen3 or mistral family", model.arch_name().c_str(), reason);
    }
}

// The rows of all heads are counted in 32 bits.
void require_countable(const llama_hparams & hparams, const edgekv_layout & layout) {
    uint64_t n_heads = 0;
    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        n_heads += hparams.has_kv(il) ? hparams.n_head_kv(il) : 0;
    }
    if (n_heads * layout.n_cells > UINT32_MAX) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT,
             "%u cells for each of %llu KV heads are %llu rows, but at most %u can be counted; lower the budget, so that it makes at "
             "most %llu cells together with a block and a probe",
             layout.n_cells, static_cast<unsigned long long>(n_heads), static_cast<unsigned long long>(n_heads * layout.n_cells),
             UINT32_MAX, static_cast<unsigned long long>(UINT32_MAX / n_heads));
    }
}

} // namespace

Memory parts_of(const llama_memory_i * given) {
    auto * memory = const_cast<llama_memory_i *>(given);
    if (auto * cache = dynamic_cast<llama_kv_cache *>(memory)) {
        return { cache->flat.get(), cache, nullptr, nullptr };
    }
    if (auto * both = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return { both->get_base()->flat.get(), both->get_base(), both->get_swa(), nullptr };
    }
    if (auto * recurrent = dynamic_cast<llama_memory_recurrent *>(memory)) {
        return { recurrent->flat.get(), nullptr, nullptr, recurrent };
    }
    Memory parts;
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        parts           = parts_of(hybrid->get_mem_attn());
        parts.recurrent = hybrid->get_mem_recr();
    } else if (auto * windowed = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        parts           = parts_of(windowed->get_mem_attn());
        parts.recurrent = windowed->get_mem_recr();
    }
    return parts;
}

const FlatCache * flat_of(const llama_memory_i * memory) { return parts_of(memory).flat; }

Memory memory_of(const llama_context * ctx) {
    const llama_model &   model   = ctx->get_model();
    const llama_cparams & cparams = ctx->get_cparams();
    const Memory          memory  = parts_of(ctx->get_memory());
    refuse(model, cparams.causal_attn ? obstacle(model) : "non-causal attention");
    if (memory.cache == nullptr && memory.recurrent == nullptr) {
        refuse(model, ctx->get_memory() == nullptr ? "no KV cache" : "a KV cache of another kind");
    }
    if (!cparams.flash_attn) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "the context was made without flash attention; enable it");
    }
    if (cparams.n_seq_max != 1) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "the context holds several sequences; make it with n_seq_max = 1");
    }
    if (memory.recurrent != nullptr && memory.recurrent->n_rs_seq != 0) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "the context keeps older recurrent states; make it with n_rs_seq = 0");
    }
    if (memory.flat == nullptr) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "the context was made without a layout; make it with edgekv_context_new and one");
    }
    const FlatCache & flat         = *memory.flat;
    const bool        attended     = flat.unattended() < 0;
    const bool        nothing_else = memory.windows == nullptr && memory.recurrent == nullptr;
    if ((flat.layers().empty() && nothing_else) || !attended) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "this model of architecture '%s' has %s, which is not supported; choose another model",
             model.arch_name().c_str(), attended ? "no layer with attention" : "a layer with KV heads that it never attends with");
    }
    return memory;
}

edgekv_shape shape_of(const llama_context * ctx) {
    const Memory          memory  = memory_of(ctx);
    const FlatCache &     flat    = *memory.flat;

    edgekv_shape shape = {};
    shape.n_layer      = flat.layers().size();
    shape.n_head_total = flat.n_heads();
    shape.n_cells      = flat.n_cells();
    shape.n_cells_max  = flat.n_cells_max();
    shape.n_threads    = std::max(1, ctx->get_cparams().n_threads_batch);
    shape.staged       = flat.on_device();
    shape.window_cells = memory.windows != nullptr ? memory.windows->get_size() : 0;
    for (const ggml_tensor * state : memory.recurrent != nullptr ? states_of(*memory.recurrent) : std::vector<ggml_tensor *>()) {
        (ggml_backend_buffer_is_host(state->buffer) ? shape.state_bytes : shape.device_state_bytes) += ggml_nbytes(state);
    }
    for (uint32_t p = 0; p < flat.pools().size(); ++p) {
        const bool host = ggml_backend_buffer_is_host(flat.pools()[p].k->buffer);
        (host ? shape.graph_bytes : shape.device_graph_bytes) += RowGraphs::bytes(flat, p);
    }
    for (const FlatCache::Layer & layer : flat.layers()) {
        const uint64_t row = layer.row_bytes();

        shape.n_head_kv_max = std::max(shape.n_head_kv_max, layer.n_head_kv);
        shape.n_head_max    = std::max(shape.n_head_max, layer.n_head());
        shape.n_group_max   = std::max(shape.n_group_max, layer.n_group);
        shape.head_dim_k    = std::max(shape.head_dim_k, layer.head_dim_k);
        shape.head_dim_v    = std::max(shape.head_dim_v, layer.head_dim_v);
        shape.cell_bytes += row * layer.n_head_kv;
        (ggml_backend_buffer_is_host(layer.k->buffer) ? shape.query_row_bytes : shape.device_query_row_bytes) +=
            sizeof(float) * layer.n_head() * layer.head_dim_k;
        shape.head_bytes = std::max(shape.head_bytes, row * shape.n_cells_max);

        shape.latent_dim_v = layer.is_latent() ? ctx->get_model().hparams.n_embd_head_v_mla() : 0;
        for (const FlatCache::Reader & reader : layer.readers) {
            const auto & weights = ctx->get_model().layers[reader.il];
            for (const ggml_tensor * weight : { weights.wo, weights.wv_b }) {
                if (weight != nullptr && !ggml_backend_buffer_is_host(weight->buffer)) {
                    shape.w_o_row_bytes = std::max(shape.w_o_row_bytes, static_cast<uint32_t>(ggml_row_size(weight->type, weight->ne[0])));
                }
            }
        }
    }
    return shape;
}

} // namespace edgekv

using namespace edgekv;

enum edgekv_status edgekv_model_load(const char * path, const struct llama_model_params * params, struct llama_model ** model,
                                     char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(path && params && model, "path, params or model is NULL");
        const Reasons reasons;
        try {
            // what it takes to read the header is free again when the weights come
            const bool may_repack = params->use_extra_bufts && !params->no_alloc;
            const auto file       = may_repack ? WeightsFile::open(path) : nullptr;

            if (may_repack && !file) {
                throw Error(EDGEKV_STATUS_MODEL_INVALID, reasons.text());
            }
            std::unique_ptr<llama_model, decltype(&llama_model_free)> loaded(llama_model_load_from_file(path, *params), llama_model_free);
            if (!loaded) {
                throw Error(EDGEKV_STATUS_MODEL_INVALID, reasons.text());
            }
            if (file) {
                file->require_current(); // llama.cpp opened the path itself
            }
            loaded->weights_file = file;
            *model               = loaded.release();
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & error) {
            throw Error(EDGEKV_STATUS_MODEL_INVALID, error.what());
        }
    });
}

enum edgekv_status edgekv_context_new(struct llama_model * model, const struct llama_context_params * params,
                                      const struct edgekv_layout * layout, struct llama_context ** ctx, char * err,
                                      size_t err_size) {
    return guard(err, err_size, [&] {
        require(model && params && ctx, "model, params or ctx is NULL");
        const Reasons                     reasons;
        std::optional<FlatCache::Request> request;
        llama_context_params              used = *params;
        if (layout != nullptr) {
            require(layout->n_cells >= 2, "layout.n_cells is less than 2");
            require(layout->n_cells_max >= layout->n_cells, "layout.n_cells_max is less than layout.n_cells");
            require_countable(model->hparams, *layout);
            request.emplace(*layout);
            // cells for llama.cpp's own notes: one that stands for all that was fed, and a batch
            used.n_ubatch = std::min({ used.n_batch, used.n_ubatch > 0 ? used.n_ubatch : used.n_batch, layout->n_cells });
            used.n_ctx    = 1 + used.n_ubatch;
            used.swa_full = false;
            refuse(*model, obstacle(*model));
        }
        *ctx = llama_init_from_model(model, used);
        if (*ctx == nullptr) {
            throw Error(request && request->refused() ? EDGEKV_STATUS_UNSUPPORTED : EDGEKV_STATUS_INTERNAL, reasons.text());
        }
    });
}

enum edgekv_status edgekv_context_shape(const struct llama_context * ctx, struct edgekv_shape * shape, char * err,
                                        size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && shape, "ctx or shape is NULL");
        *shape = shape_of(ctx);
    });
}
