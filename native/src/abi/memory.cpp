// Bytes of a context, by kind and by place.
#include "ggml-backend.h"
#include "hooks/status.h"
#include "hooks/streamed_weights.h"
#include "hooks/weights_file.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "rows/memory.h"

using namespace edgekv;

enum edgekv_status edgekv_context_memory(const struct llama_context * ctx, struct edgekv_memory * memory, char * err,
                                         size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && memory, "ctx or memory is NULL");
        *memory = {};
        for (const auto & [type, held] : llama_get_memory_breakdown(ctx)) {
            if (is_streamed(type)) {
                continue; // its weights are in the file
            }
            if (is_repacked(type)) {
                memory->repack_bytes += held.model;
            } else if (ggml_backend_buft_is_host(type)) {
                memory->weight_bytes += held.model;
            } else {
                memory->device_bytes += held.total();
                continue;
            }
            memory->kv_bytes += held.context;
            memory->compute_bytes += held.compute;
        }
        if (const auto & streamed = ctx->get_model().streamed_weights) {
            memory->weight_bytes += streamed->stats().n_slot_bytes;
        }
        const Memory parts      = parts_of(ctx->get_memory());
        const auto   add_states = [&](const llama_memory_i & part) {
            for (const auto & [type, n_bytes] : part.memory_breakdown()) {
                memory->state_bytes += ggml_backend_buft_is_host(type) ? n_bytes : 0;
            }
        };
        if (parts.recurrent != nullptr) {
            add_states(*parts.recurrent);
        }
        if (parts.windows != nullptr) {
            add_states(*parts.windows);
        }
        memory->kv_bytes -= memory->state_bytes;
        // rows of logits, the token ids that a context lists for its samplers, and the candidates of each slot's sampler
        const bool     is_one  = parts.flat == nullptr || logits_stay(ctx->get_memory(), ctx->get_model()); // that llama.cpp begins with
        const uint64_t n_rows  = is_one ? 1 : ctx->get_cparams().n_outputs_max;
        const uint64_t n_slots = parts.flat != nullptr ? parts.flat->n_slots() : 1;
        const uint64_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(&ctx->get_model()));
        memory->output_bytes   = n_vocab * (n_rows * sizeof(float) + sizeof(llama_token) + n_slots * sizeof(llama_token_data));
    });
}
