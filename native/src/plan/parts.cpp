// What a context, its model and its cache take, part by part.
#include "abi/context.h"
#include "abi/status.h"
#include "cache/cache.h"
#include "llama-context.h"
#include "llama-model.h"
#include "plan/open.h"

#include <algorithm>

using namespace edgekv;

namespace {

constexpr uint64_t n_graphs         = 2;       // the reserved one, and one for those of blocks and of tokens, built when they come
constexpr uint64_t rounding_bytes   = 1 << 20; // what is measured differs from run to run by some pages; the plan shall not
constexpr uint64_t margin_bytes     = 1 << 20; // holes in the heap, and what a reply takes in the host
constexpr uint64_t llama_cell_bytes = 48;      // what llama.cpp notes of one cell of its own
constexpr uint64_t thread_bytes     = 1 << 18; // stack and attention scratch of one thread
constexpr uint64_t draft_bytes      = 1 << 18; // the tokens that drafts are looked up in, and what a search takes
constexpr uint64_t activation_bytes = 2;       // one element of an activation, in the format that weights are multiplied in

// Elements of a token's widest activation, among those that weights are multiplied with.
uint32_t widest_row(const llama_hparams & hparams) {
    uint32_t widest = hparams.n_embd;
    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        widest = std::max(widest, hparams.n_ff(il));
    }
    return widest;
}

// Cells that llama.cpp makes notes of; a model without attention has none.
uint32_t llama_cells(const edgekv_shape & shape) {
    return (shape.n_layer > 0 || shape.window_cells > 0 ? shape.n_cells : 0) + shape.window_cells;
}

} // namespace

enum edgekv_status edgekv_context_parts(const struct llama_context * ctx, const struct edgekv_cache_params * params,
                                        struct edgekv_parts * parts, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && params && parts, "ctx, params or parts is NULL");
        edgekv_memory memory = {};
        checked(edgekv_context_memory, ctx, &memory);
        const edgekv_shape    shape   = shape_of(ctx);
        require_divisible(*memory_of(ctx).flat, params->ragged);
        const llama_cparams & cparams = ctx->get_cparams();

        parts->graph_bytes *= n_graphs;
        const uint64_t measured  = parts->host_bytes + parts->vocabulary_bytes + parts->graph_bytes;
        parts->rounding_bytes    = (rounding_bytes - measured % rounding_bytes) % rounding_bytes;
        parts->weight_bytes      = memory.weight_bytes;
        parts->repack_bytes      = memory.repack_bytes;
        parts->kv_bytes          = memory.kv_bytes;
        parts->state_bytes       = memory.state_bytes;
        parts->compute_bytes     = memory.compute_bytes;
        parts->output_bytes      = memory.output_bytes;
        parts->bookkeeping_bytes = edgekv_cache_estimate_bytes(&shape, params);
        parts->margin_bytes      = margin_bytes;
        parts->workspace_bytes   = std::max(1, cparams.n_threads_batch) * thread_bytes + llama_cells(shape) * llama_cell_bytes +
                                 uint64_t(cparams.n_ubatch) * widest_row(ctx->get_model().hparams) * activation_bytes +
                                 (params->n_draft > 0 ? draft_bytes : 0);
    });
}
