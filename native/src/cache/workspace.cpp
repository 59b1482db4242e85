#include "cache/workspace.h"

#include "cache/query_window.h"
#include "ggml-backend.h"
#include "rows/context_rope.h"
#include "score/wo_norm.h"

#include <algorithm>

namespace edgekv {

bool is_staged(const edgekv_shape & shape, Staging staging) { return shape.staged != 0 || staging != Staging::automatic; }

size_t n_workers(const edgekv_shape & shape, const edgekv_cache_params & params, Staging staging) {
    return is_staged(shape, staging) || params.custom_reads != 0 ? 1 : std::min(shape.n_threads, shape.n_layer);
}

CellParts cell_parts(const edgekv_shape & shape, const edgekv_cache_params & params, Staging staging) {
    const bool graphs = is_staged(shape, staging) && staging != Staging::copies;
    const bool values = params.values != 0 || params.wo_norms != 0;
    return { params.accumulates != 0, params.wo_norms != 0, (params.ragged & EDGEKV_RAGGED_SOFTMAX) != 0,
             graphs && values, graphs && params.n_probe_rows > 0, params.repositions != 0 };
}

uint64_t copied_query_bytes(const edgekv_shape & shape, const edgekv_cache_params & params, Staging staging) {
    const uint64_t n_rows = std::max<uint64_t>(n_text_rows(params.n_query_rows, params.n_draft), params.n_probe_rows);
    return is_staged(shape, staging) ? sizeof(float) * n_rows * shape.n_head_max * shape.head_dim_k : 0;
}

ScratchSize scratch_size(const edgekv_shape & shape, const edgekv_cache_params & params) {
    ScratchSize size{ shape.n_cells_max, std::max(shape.head_dim_k, shape.head_dim_v) };
    size.n_rows   = std::max(params.n_query_rows, params.n_probe_rows);
    size.n_window = shape.n_group_max * size.n_rows;
    if (params.wo_norms) {
        const bool   latent = shape.latent_dim_v > 0;
        const size_t dim    = latent ? shape.latent_dim_v : shape.head_dim_v; // of a value that W_O takes
        size                = wo_norm_scratch(size, latent ? shape.n_head_max : shape.n_head_kv_max, dim, shape.n_head_max * dim,
                                              latent ? shape.head_dim_v : 0);
        size.wo_bytes          = WoNorm::n_slice * shape.w_o_row_bytes;
    }
    return size;
}

size_t contest_size(const edgekv_shape & shape, const edgekv_cache_params & params) {
    const size_t all = size_t(shape.n_head_total) * shape.n_cells;
    return params.ragged != 0 ? std::min(all, size_t(shape.n_head_kv_max) * shape.n_cells_max) : 0;
}

Workspace::Workspace(const llama_context & ctx, const FlatCache & flat, const edgekv_shape & shape, const edgekv_cache_params & params,
                     Staging staging, float * new_norms) :
    cells(flat.n_cells_total(), cell_parts(shape, params, staging), new_norms), scratch(n_workers(shape, params, staging)),
    contest(contest_size(shape, params)), parts_(cell_parts(shape, params, staging)), n_rows_(flat.n_cells_total()),
    custom_bytes_(CustomArrays::bytes(shape, params)) {
    std::vector<RopeAngles> angles;
    for (const FlatCache::Layer & layer : flat.layers()) {
        const FlatCache::Attention & attention = flat.attention(layer.il);
        if (params.repositions != 0 || params.before_rope != 0) {
            angles.push_back(params.repositions != 0 ? rope_angles(ctx, layer.il) : rope_angles(attention.rope));
            undo.emplace_back(angles.back());
        }
        if (params.repositions != 0) {
            turns.emplace_back(angles.back(), layer.head_dim_k, layer.k->type, flat.attention(flat.layers().front().il).rotation_k);
        }
    }
    for (Scratch & each : scratch) {
        each.reserve(scratch_size(shape, params));
    }
    custom.reserve(shape, params);
    copy_queries.rows.resize(copied_query_bytes(shape, params, staging));
    if (is_staged(shape, staging)) {
        for (const auto & pool : flat.pools()) {
            copy_k.rows.resize(std::max(copy_k.rows.size(), pool.k->nb[1] * shape.n_cells_max));
            copy_v.rows.resize(std::max(copy_v.rows.size(), pool.v == pool.k ? 0 : pool.v->nb[1] * shape.n_cells_max));
        }
    }
    for (uint32_t p = 0; p < flat.pools().size(); ++p) {
        const bool host = staging == Staging::copies ||
                          (staging == Staging::automatic && ggml_backend_buffer_is_host(flat.pools()[p].k->buffer));
        graphs.push_back(host ? nullptr : std::make_unique<RowGraphs>(ctx, flat, p, angles));
    }
}

RowGraphs * Workspace::moving(size_t pool) const {
    RowGraphs * of_pool = graphs[pool].get();
    return of_pool != nullptr && of_pool->moves() ? of_pool : nullptr;
}

void Workspace::finish() const {
    for (const auto & each : graphs) {
        if (each) {
            each->finish();
        }
    }
}

uint64_t Workspace::bytes() const {
    uint64_t sum = WorkArrays::bytes(n_rows_, parts_) + copy_k.rows.capacity() + copy_v.rows.capacity() +
                   copy_queries.rows.capacity() + custom_bytes_ + contest.capacity() * sizeof(float);
    for (const Scratch & each : scratch) {
        sum += each.held();
    }
    return sum;
}

uint64_t Workspace::graph_bytes(bool host) const {
    uint64_t sum = 0;
    for (const auto & each : graphs) {
        sum += each ? each->bytes(host) : 0;
    }
    return sum;
}

uint64_t Workspace::estimate_bytes(const edgekv_shape & shape, const edgekv_cache_params & params, Staging staging) {
    const uint64_t n_rows = uint64_t(shape.n_head_total) * shape.n_cells;
    return WorkArrays::bytes(n_rows, cell_parts(shape, params, staging)) + contest_size(shape, params) * sizeof(float) +
           n_workers(shape, params, staging) * Scratch::bytes(scratch_size(shape, params)) + CustomArrays::bytes(shape, params) +
           copied_query_bytes(shape, params, staging) + (is_staged(shape, staging) ? shape.head_bytes : 0);
}

} // namespace edgekv
