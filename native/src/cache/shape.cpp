#include "cache/shape.h"

#include "device/row_graphs.h"
#include "hooks/streamed_weights.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "matmul/products.h"
#include "rows/flat_cache.h"
#include "rows/memory.h"
#include "rows/recurrent_state.h"

#include <algorithm>
#include <vector>

namespace edgekv {

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
        (host ? shape.graph_bytes : shape.graph_description_bytes) += RowGraphs::host_bytes(flat, p);
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
                if (weight != nullptr && (!ggml_backend_buffer_is_host(weight->buffer) || is_streamed(*weight))) {
                    shape.w_o_row_bytes = std::max(shape.w_o_row_bytes, static_cast<uint32_t>(ggml_row_size(weight->type, weight->ne[0])));
                }
            }
        }
    }
    shape.n_exact = UINT64_MAX;
    for (const auto & [_, weight] : ctx->get_model().tensors_by_name) {
        shape.n_exact = std::min(shape.n_exact, most_alike(weight->type));
    }
    return shape;
}

} // namespace edgekv
