// What a context, its model and its cache take, part by part.
#include "cache/cache.h"
#include "ggml-cpp.h"
#include "hooks/given.h"
#include "hooks/processor.h"
#include "hooks/status.h"
#include "hooks/weights_file.h"
#include "llama-context.h"
#include "llama-model.h"
#include "llama-kv-cache.h"
#include "plan/open.h"
#include "plan/process.h"
#include "rows/flat_cache.h"
#include "rows/memory.h"

#include <algorithm>
#include <iterator>
#include <new>

using namespace edgekv;

namespace {

constexpr uint64_t host_step        = 2 << 20; // the host differs from run to run by up to a third of a MiB; the plan shall not
constexpr uint64_t model_step       = 1 << 20; // its vocabulary and graphs by some pages
constexpr uint64_t margin_bytes     = 2 << 20; // holes in the heap, and what a text and a reply take in the host
constexpr uint64_t draft_bytes      = 1 << 18; // the tokens that drafts are looked up in, and what a search takes

// What llama.cpp notes of one cell of its own: arrays, and a node in each of two trees.
constexpr uint64_t tree_node_bytes  = 48;
constexpr uint64_t llama_cell_bytes =
    2 * sizeof(llama_pos) + sizeof(llama_kv_cell_ext) + sizeof(llama_kv_cells::seq_set_t) + 2 * tree_node_bytes;

// Cells that llama.cpp makes notes of. Those of windows are there twice while a snapshot is restored.
uint64_t llama_cells(const Memory & memory) {
    return (memory.cache != nullptr ? memory.cache->get_size() : 0) + (memory.windows != nullptr ? 2 * memory.windows->get_size() : 0);
}

// Whether the host computes a node: where its weights and rows lie, it is computed.
bool is_host_node(const ggml_tensor & node) {
    return std::none_of(std::begin(node.src), std::end(node.src), [](const ggml_tensor * src) {
        const ggml_tensor * owner = src != nullptr && src->view_src != nullptr ? src->view_src : src;
        return owner != nullptr && owner->buffer != nullptr && !ggml_backend_buffer_is_host(owner->buffer) &&
               !is_repacked(ggml_backend_buffer_get_type(owner->buffer));
    });
}

// What ggml's threads work in, as ggml itself counts it for the largest graph: activations in the format that weights are
// multiplied in, or each thread's tiles of attention.
uint64_t shared_work_bytes(const llama_context & ctx, int n_threads) {
    ggml_cgraph *    all = ctx.get_gf_res_reserve()->get_gf();
    const int        n   = ggml_graph_n_nodes(all);
    ggml_context_ptr context(ggml_init({ ggml_graph_overhead_custom(n, false) + ggml_tensor_overhead(), nullptr, true }));
    if (!context) {
        throw std::bad_alloc();
    }
    ggml_cgraph * host = ggml_new_graph_custom(context.get(), n, false);
    for (int i = 0; i < n; ++i) {
        if (is_host_node(*ggml_graph_node(all, i))) {
            ggml_graph_add_node(host, ggml_graph_node(all, i));
        }
    }
    return processor().graph_plan(host, n_threads, nullptr).work_size;
}

// Descriptions of the graphs that run: of batches with outputs, and of those without. llama.cpp makes them when they come, with
// room for a quarter more nodes than the reserved one has (0001-rows-by-head.patch).
uint64_t running_graph_bytes(const llama_context & ctx) {
    const size_t n_nodes = ggml_graph_n_nodes(ctx.get_gf_res_reserve()->get_gf()) * 5 / 4;
    return 2 * (n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false));
}

// Bytes that fill n_bytes up to whole steps.
uint64_t filling(uint64_t n_bytes, uint64_t step) { return (step - n_bytes % step) % step; }

} // namespace

enum edgekv_status edgekv_context_parts(const struct llama_context * ctx, const struct edgekv_cache_params * params,
                                        struct edgekv_parts * parts, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(ctx && params && parts, "ctx, params or parts is NULL");
        const edgekv_cache_params needs = given(*params);
        edgekv_memory memory = {};
        checked(edgekv_context_memory, ctx, &memory);
        const edgekv_shape shape     = shape_of(ctx);
        const Memory       held      = memory_of(ctx);
        const int          n_threads = std::max(1, ctx->get_cparams().n_threads_batch);
        require_divisible(*held.flat, needs.ragged);

        parts->graph_bytes += running_graph_bytes(*ctx);
        const uint64_t of_model  = parts->vocabulary_bytes + parts->graph_bytes;
        parts->rounding_bytes    = filling(parts->host_bytes, host_step) + filling(of_model, model_step);
        parts->weight_bytes      = memory.weight_bytes;
        parts->repack_bytes      = memory.repack_bytes;
        parts->kv_bytes          = memory.kv_bytes;
        parts->state_bytes       = memory.state_bytes;
        parts->compute_bytes     = memory.compute_bytes;
        parts->output_bytes      = memory.output_bytes;
        parts->bookkeeping_bytes = held.flat->n_slots() * edgekv_cache_estimate_bytes(&shape, &needs);
        parts->margin_bytes      = margin_bytes;
        parts->workspace_bytes   = n_threads * thread_bytes + shared_work_bytes(*ctx, n_threads) + llama_cells(held) * llama_cell_bytes +
                                 (needs.n_draft > 0 ? draft_bytes : 0);
    });
}
