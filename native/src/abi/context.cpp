// Models and contexts: llama.cpp's calls with its reasons as text and its aborts as a status.
#include "abi/reasons.h"
#include "cache/shape.h"
#include "hooks/given.h"
#include "hooks/status.h"
#include "hooks/streamed_weights.h"
#include "hooks/weights_file.h"
#include "llama-context.h"
#include "llama-model.h"
#include "rows/cache_request.h"
#include "rows/context_rope.h"
#include "rows/memory.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

using namespace edgekv;

namespace {

// The rows of all heads are counted in 32 bits.
void require_countable(const llama_hparams & hparams, const edgekv_layout & layout, uint32_t n_slots) {
    uint64_t n_heads = 0;
    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        n_heads += hparams.has_kv(il) ? hparams.n_head_kv(il) : 0;
    }
    const uint64_t n_runs = n_heads * n_slots;
    if (n_runs * layout.n_cells > UINT32_MAX) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT,
             "%u cells for each of %llu KV heads are %llu rows, but at most %u can be counted; lower the budget, so that it makes at "
             "most %llu cells together with a block and a probe",
             layout.n_cells, static_cast<unsigned long long>(n_runs), static_cast<unsigned long long>(n_runs * layout.n_cells),
             UINT32_MAX, static_cast<unsigned long long>(UINT32_MAX / n_runs));
    }
}

// Make the slots of a context that was just made. What a model keeps beside its rows is there once.
void add_slots(const llama_context & ctx, uint32_t n_slots) {
    const Memory memory = parts_of(ctx.get_memory());
    if (n_slots > 1 && (memory.windows != nullptr || memory.recurrent != nullptr)) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "%u slots, but this model keeps sliding windows or recurrent states, of which a context has one; use "
             "one slot (n_slots = 1 in C, parallel=1 in Python)", n_slots);
    }
    if (memory.flat != nullptr) {
        memory.flat->add_slots();
    }
}

// Whether tables of embeddings are looked up in the file: if it is not mapped, and llama.cpp need not place weights elsewhere.
bool looks_up_tables(const llama_model_params & params) {
    return params.load_mode == LLAMA_LOAD_MODE_NONE && !params.no_alloc && params.tensor_buft_overrides == nullptr &&
           params.n_gpu_layers == 0;
}

bool has_table(const WeightsFile & file, const StreamedLayers & layers) {
    bool found = false;
    file.each([&](const std::string & weight, int64_t) { found = found || layers.is_table(weight); });
    return found;
}

// Throws Error if so many layers cannot be streamed.
void require_streamable(const WeightsFile & file, const llama_model_params & params, uint32_t n_streamed) {
    if (params.tensor_buft_overrides != nullptr || params.n_gpu_layers > 0) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "n_streamed = %u needs params without tensor_buft_overrides and with n_gpu_layers = 0, or "
             "llama.cpp's default", n_streamed);
    }
    if (file.n_files() > 1) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "the model is split into %u files, and its weights cannot be streamed; join them to one",
             file.n_files());
    }
    if (n_streamed > file.n_layers()) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "n_streamed = %u, but the model has %u layers; lower it", n_streamed, file.n_layers());
    }
}

// llama.cpp would abort at the first text.
void require_framing(const llama_vocab & vocab) {
    if ((vocab.get_add_bos() && vocab.token_bos() == LLAMA_TOKEN_NULL) || (vocab.get_add_eos() && vocab.token_eos() == LLAMA_TOKEN_NULL)) {
        throw Error(EDGEKV_STATUS_MODEL_INVALID, "texts begin or end with a token that the file does not name");
    }
}

// NULL if all weights stay in memory. file: NULL if nothing is read again
std::shared_ptr<StreamedWeights> streamed_weights(const std::shared_ptr<const WeightsFile> & file, const llama_model_params & params,
                                                  uint32_t n_streamed) {
    if (n_streamed == 0 && !looks_up_tables(params)) {
        return nullptr;
    }
    const StreamedLayers layers = { file->n_layers(), n_streamed, file->has_output() };
    if (n_streamed > 0) {
        require_streamable(*file, params, n_streamed);
    } else if (file->n_files() > 1 || !has_table(*file, layers)) {
        return nullptr;
    }
    return std::make_shared<StreamedWeights>(file, layers);
}

} // namespace

enum edgekv_status edgekv_model_load(const char * path, const struct llama_model_params * params, uint32_t n_streamed,
                                     struct llama_model ** model, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(path && params && model, "path, params or model is NULL");
        const Reasons reasons;
        try {
            // what it takes to read the header is free again when the weights come
            const bool repacks       = params->use_extra_bufts && !params->no_alloc;
            const bool is_read_again = repacks || n_streamed > 0 || looks_up_tables(*params);
            const auto file          = is_read_again ? WeightsFile::open(path, n_streamed > 0) : nullptr;

            if (is_read_again && !file) {
                throw Error(EDGEKV_STATUS_MODEL_INVALID, reasons.text());
            }
            const auto         streamed = streamed_weights(file, *params, n_streamed);
            const std::string  pattern  = streamed ? streamed->layers().pattern(*file) : "";
            llama_model_params used     = *params;
            const llama_model_tensor_buft_override overrides[] = { { pattern.c_str(), streamed ? streamed->type() : nullptr }, {} };
            if (streamed) {
                used.tensor_buft_overrides = overrides;
                used.load_mode             = LLAMA_LOAD_MODE_NONE;
                used.n_gpu_layers          = 0; // where the default says that all may go to a device
            }
            std::unique_ptr<llama_model, decltype(&llama_model_free)> loaded(llama_model_load_from_file(path, used), llama_model_free);
            if (!loaded) {
                throw Error(EDGEKV_STATUS_MODEL_INVALID, reasons.text());
            }
            require_framing(loaded->vocab);
            if (file) {
                file->require_current(); // llama.cpp opened the path itself
            }
            if (streamed) {
                streamed->begin(loaded->tensors_by_name);
            }
            loaded->weights_file     = file;
            loaded->streamed_weights = streamed;
            *model                   = loaded.release();
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const Error &) {
            throw;
        } catch (const std::exception & error) {
            throw Error(EDGEKV_STATUS_MODEL_INVALID, error.what());
        }
    });
}

enum edgekv_status edgekv_context_new(struct llama_model * model, const struct llama_context_params * params,
                                      const struct edgekv_layout * of_program, struct llama_context ** ctx, char * err,
                                      size_t err_size) {
    return guard(err, err_size, [&] {
        require(model && params && ctx, "model, params or ctx is NULL");
        const auto     layout  = of_program != nullptr ? std::optional(given(*of_program)) : std::nullopt;
        const uint32_t n_slots = layout ? std::max(1u, layout->n_slots) : 1;
        const Reasons  reasons;

        std::optional<CacheRequest> request;
        llama_context_params        used = *params;
        if (layout) {
            require(layout->n_cells >= 2, "layout.n_cells is less than 2");
            require(layout->n_cells_max >= layout->n_cells, "layout.n_cells_max is less than layout.n_cells");
            require(layout->n_probe <= layout->n_cells, "layout.n_probe is more than layout.n_cells");
            require(n_slots <= EDGEKV_MOST_SLOTS, "layout.n_slots is more than EDGEKV_MOST_SLOTS");
            require_countable(model->hparams, *layout, n_slots);
            request.emplace(*layout);
            // cells for llama.cpp's own notes: one that stands for all that was fed, and a batch
            used.n_ubatch = std::min({ used.n_batch, used.n_ubatch > 0 ? used.n_ubatch : used.n_batch, layout->n_cells });
            used.n_ctx    = 1 + used.n_ubatch;
            used.swa_full = false;
            require_supported(*model);
        }
        std::unique_ptr<llama_context, decltype(&llama_free)> made(llama_init_from_model(model, used), llama_free);
        if (!made) {
            throw Error(request && request->refused() ? EDGEKV_STATUS_UNSUPPORTED : EDGEKV_STATUS_INTERNAL, reasons.text());
        }
        if (request) {
            add_slots(*made, n_slots);
        }
        *ctx = made.release();
    });
}

enum edgekv_status edgekv_context_shape(const struct llama_context * ctx, struct edgekv_shape * shape, char * err,
                                        size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && shape, "ctx or shape is NULL");
        *shape = shape_of(ctx);
    });
}

enum edgekv_status edgekv_context_rope(const struct llama_context * ctx, uint32_t layer, double * angles, uint32_t * first,
                                       uint32_t * n_rot, int32_t * neighbours, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && angles && first && n_rot && neighbours, "ctx, angles, first, n_rot or neighbours is NULL");
        const auto & layers = memory_of(ctx).flat->layers();
        if (layer >= layers.size()) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT, "layer %u does not exist; the cache has %zu layers", layer, layers.size());
        }
        const RopeAngles found = rope_angles(*ctx, layers[layer].il);
        if (found.n_rot > *n_rot) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT, "RoPE turns %u elements of a key, but there is room for %u; make room for all",
                 found.n_rot, *n_rot);
        }
        std::copy(found.w.begin(), found.w.end(), angles);
        *first      = found.first;
        *n_rot      = found.n_rot;
        *neighbours = found.neighbours;
    });
}
