#include "rows/memory.h"

#include "hooks/status.h"
#include "llama-context.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "rows/flat_cache.h"

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

// Throws Error if there is a reason.
void refuse(const llama_model & model, const char * reason) {
    if (reason != nullptr) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "architecture '%s' uses %s, which is not supported yet; choose a model of the llama, qwen2, "
             "qwen3 or mistral family", model.arch_name().c_str(), reason);
    }
}

} // namespace

void require_supported(const llama_model & model) { refuse(model, obstacle(model)); }

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

bool logits_stay(const llama_memory_i * memory, const llama_model & model) {
    return flat_of(memory) != nullptr && ggml_backend_dev_type(model.dev_output()) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

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

} // namespace edgekv
