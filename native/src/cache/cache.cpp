#include "cache/cache.h"

#include "ggml-backend.h"
#include "hooks/status.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "rows/context_rope.h"
#include "rows/host_attention.h"

#include <algorithm>
#include <cmath>

using namespace edgekv;

namespace edgekv {

void require_divisible(const FlatCache & flat, uint32_t ragged) {
    const auto & layers = flat.layers();
    if ((ragged & EDGEKV_RAGGED_LAYERS) != 0 && flat.pools().size() > 1) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "layers cannot share cells (pyramid) where their heads differ in size or lie in different "
                                               "memories; use ada, or the policy without pyramid");
    }
    const auto more = std::find_if(layers.begin(), layers.end(),
                                   [&](const auto & layer) { return layer.n_head_kv != layers.front().n_head_kv; });
    if ((ragged & EDGEKV_RAGGED_LAYERS) != 0 && more != layers.end()) {
        fail(EDGEKV_STATUS_UNSUPPORTED,
             "pyramid needs layers with equally many KV heads, but layer %u of this model has %u and layer %u has %u; use ada, or the "
             "policy without pyramid",
             layers.front().il, layers.front().n_head_kv, more->il, more->n_head_kv);
    }
}

} // namespace edgekv

namespace {

// The learnt sinks of all query heads that read a layer's rows, which may lie on a device.
std::vector<float> sinks_of(const llama_model & model, const FlatCache::Layer & layer) {
    std::vector<float> sinks;
    for (const FlatCache::Reader & reader : layer.readers) {
        const ggml_tensor * tensor = model.layers[reader.il].attn_sinks;
        if (tensor == nullptr) {
            continue;
        }
        sinks.resize(layer.n_head(), -INFINITY); // of readers without sinks
        for (uint32_t g = 0; g < layer.n_head_kv; ++g) {
            ggml_backend_tensor_get(tensor, &sinks[g * layer.n_group + reader.first], g * reader.n_group * sizeof(float),
                                    reader.n_group * sizeof(float));
        }
    }
    return sinks;
}

// Elements of a value, as the output projections of a layer take it.
uint32_t value_dim(const edgekv_shape & shape, const FlatCache::Layer & layer) {
    return layer.is_latent() ? shape.latent_dim_v : layer.head_dim_v;
}

void require_projections(const llama_model & model, const FlatCache::Layer & layer, uint32_t dim) {
    for (const FlatCache::Reader & reader : layer.readers) {
        const ggml_tensor * w_o = model.layers[reader.il].wo;
        if (w_o == nullptr || w_o->ne[0] != int64_t(reader.n_group) * layer.n_head_kv * dim) {
            fail(EDGEKV_STATUS_UNSUPPORTED, "layer %u of architecture '%s' has no output projection that critical could read", reader.il,
                 model.arch_name().c_str());
        }
    }
}

// The output projections of the layers that read a layer's rows. dim: of a value, as they take it
std::vector<WeightRows> projections_of(const llama_model & model, const FlatCache::Layer & layer, uint32_t dim) {
    require_projections(model, layer, dim);
    std::vector<WeightRows> projections;
    for (const FlatCache::Reader & reader : layer.readers) {
        projections.emplace_back(model, *model.layers[reader.il].wo);
    }
    return projections;
}

// What the kinds of model and cache decide.
void require_suited(const llama_context & ctx, const edgekv_cache_params & params) {
    if (uint64_t(params.n_query_rows) + params.n_draft + params.n_probe_rows > INT32_MAX) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "n_query_rows = %u, n_draft = %u and n_probe_rows = %u are more queries than there are "
             "positions; lower them", params.n_query_rows, params.n_draft, params.n_probe_rows);
    }
    if (params.n_draft >= ctx.get_cparams().n_outputs_max) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "drafts of %u tokens, but the context has n_outputs_max = %u; make it with %u",
             params.n_draft, ctx.get_cparams().n_outputs_max, params.n_draft + 1);
    }
    if (params.values != 0 && shape_of(&ctx).latent_dim_v > 0) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "the policy compares the values of a head, but the cache holds latents, of which every "
                                               "query head makes its own; choose a policy that reads keys or attention, such as "
                                               "keydiff or snapkv");
    }
    const Memory memory = memory_of(&ctx);
    require_divisible(*memory.flat, params.ragged);
    if (params.n_draft > 0 && (memory.windows != nullptr || memory.recurrent != nullptr)) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "drafts need cells that can be dropped one by one, and this model keeps sliding windows "
                                               "or recurrent states; use n_draft = 0");
    }
    if (params.repositions != 0) {
        require_movable(ctx); // also where no layer has rows
    }
}

} // namespace

void edgekv::require_openable(const llama_context & ctx, const edgekv_cache_params & params) {
    require_suited(ctx, params);
    const FlatCache & flat = *memory_of(&ctx).flat;
    if (params.repositions != 0) {
        require_turnable(ctx);
    }
    for (const FlatCache::Layer & layer : flat.layers()) {
        if (params.before_rope != 0) {
            require_turnable(flat.attention(layer.il).rope);
        }
        if (params.wo_norms != 0) {
            require_projections(ctx.get_model(), layer, value_dim(shape_of(&ctx), layer));
        }
    }
}

edgekv_cache::edgekv_cache(llama_context * ctx, const edgekv_cache_params & params) :
    ctx(ctx), kv(memory_of(ctx).cache), shape(shape_of(ctx)), params_(params), staging_(staging()),
    root_(*memory_of(ctx).flat), flat_(root_.slot(params.slot)), claim_(flat_),
    rotation_(0), value_rotation_(0), softcap_(0.0f), cells_(flat_.n_cells_total(), cell_parts(shape, params, staging_)) {
    require_suited(*ctx, params);
    const Memory          memory  = memory_of(ctx);
    const llama_model &   model   = ctx->get_model();
    const llama_hparams & hparams = model.hparams;
    if (!flat_.layers().empty()) {
        const FlatCache::Attention & first = flat_.attention(flat_.layers().front().il);
        rotation_                          = first.rotation_k;
        value_rotation_                    = first.rotation_v;
    }
    if (hparams.attn_soft_cap) {
        softcap_ = hparams.f_attn_logit_softcapping;
    }
    for (const FlatCache::Layer & flat : flat_.layers()) {
        layers_.push_back({ flat, {}, {}, sinks_of(model, flat) });
        if (params.wo_norms != 0) {
            layers_.back().projections = projections_of(model, flat, value_dim(shape, flat));
            layers_.back().w_v         = flat.is_latent() ? WeightRows(model, *model.layers[flat.il].wv_b) : WeightRows();
        }
    }
    work_ = std::make_unique<Workspace>(*ctx, flat_, shape, params, staging_, cells_.at(0, 0).wo_norm);
    if (params.n_query_rows > 0 || params.n_probe_rows > 0) {
        window_.emplace(flat_, params.n_query_rows, params.n_draft, params.n_probe_rows);
    }
    if (memory.recurrent != nullptr) {
        state_.emplace(*memory.recurrent);
    }
    if (memory.windows != nullptr) {
        const uint32_t room = std::max(ctx->get_cparams().n_ubatch, params.n_probe_rows);
        if (memory.windows->get_size() < model.hparams.n_swa + room) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT, "probes of %u tokens, but the context's sliding windows have no room for them; give the "
                 "layout an n_probe of as many", params.n_probe_rows);
        }
        windows_.emplace(*memory.windows);
    }
    clear();
}

// A device may still write to the rings of queries, which are freed next.
edgekv_cache::~edgekv_cache() { llama_synchronize(ctx); }

void edgekv_cache::clear() {
    ctx->get_memory()->clear(false);
    flat_.clear();
    n_filled_   = 0;
    n_recalled_ = 0;
    n_drafted_  = 0;
    n_past      = 0;
    rope_past  = 0;
    n_fresh_   = 0;
    n_missed_  = 0;
    normed_    = 0;
    if (window_) {
        window_->clear();
    }
    for (const auto & graphs : work_->graphs) {
        if (graphs) {
            graphs->forget();
        }
    }
}

// Cells that a compaction kept lie in no order, and scores and rings of queries hold what came after older tokens. Recalled cells lie
// among those of newer tokens, each head's own.
uint32_t edgekv_cache::n_droppable() const {
    if (state_ || windows_) {
        return 0;
    }
    uint32_t n = params_.accumulates != 0 ? std::min(n_filled_, n_fresh_) : n_filled_;
    n          = window_ ? std::min(n, window_->n_droppable(n_past)) : n;
    for (uint32_t il = 0; il < layers_.size(); ++il) {
        for (uint32_t g = 0; g < layers_[il].n_head_kv; ++g) {
            const HeadView head     = cells(il, g);
            uint32_t       n_newest = 0;
            while (n_newest < n && head.position[head.n - 1 - n_newest] == n_past - 1 - static_cast<int32_t>(n_newest)) {
                ++n_newest;
            }
            n = n_newest;
        }
    }
    return n;
}

void edgekv_cache::drop(uint32_t n) {
    if (n > n_droppable()) {
        fail(EDGEKV_STATUS_INVALID_STATE, "%u tokens to drop, but the cells of the newest %u alone can be; clear the cache and feed it again",
             n, n_droppable());
    }
    if (static_cast<int32_t>(n) == n_past) {
        clear();
        return;
    }
    llama_synchronize(ctx); // a device may still write to the rows
    n_filled_ -= n;
    n_drafted_ = 0;
    n_past -= static_cast<int32_t>(n);
    rope_past -= static_cast<int32_t>(n);
    n_fresh_ -= std::min(n_fresh_, n);
    n_missed_ = std::min(n_missed_, n_fresh_);
    normed_   = std::min(normed_, n_past);
    if (window_) {
        window_->forget_probe();
    }
    flat_.outdate();
    stand_in();
}

void edgekv_cache::allow(uint32_t n_cells) {
    if (n_cells == 0 || n_cells > flat_.n_cells()) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "%u cells of every head, but the context has from 1 to %u; give as many", n_cells,
             flat_.n_cells());
    }
    flat_.allow(n_cells);
}

bool edgekv_cache::holds(const std::vector<uint32_t> & cells) const {
    if (cells.size() != flat_.n_heads()) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "cells of %zu heads, but the cache has %u; give a number for each", cells.size(), flat_.n_heads());
    }
    return (are_alike(cells) || takes_unlike_heads()) && flat_.fits(cells, 0);
}

size_t edgekv_cache::row_of(uint32_t il, uint32_t g) const {
    const FlatCache::Head & head = head_of(il, g); // fails first if there is no such layer
    return flat_.pools()[layers_[il].pool].offset + head.cell;
}

HostRows edgekv_cache::host_rows(const edgekv_layer & layer, bool values, size_t first, size_t n) const {
    const bool      of_v = values && !layer.is_latent();
    RowCopy * const copy = is_copied(pools()[layer.pool]) ? (of_v ? &work_->copy_v : &work_->copy_k) : nullptr;
    return HostRows(of_v ? layer.v : layer.k, first, n, copy);
}

HeadCells edgekv_cache::cells(uint32_t il, uint32_t g) { return cells_.at(row_of(il, g), head_of(il, g).open() + n_filled_); }
HeadView  edgekv_cache::cells(uint32_t il, uint32_t g) const { return cells_.at(row_of(il, g), head_of(il, g).open() + n_filled_); }

uint32_t edgekv_cache::n_kept(uint32_t il, uint32_t g) const { return head_of(il, g).kept; }

uint32_t edgekv_cache::n_cells() const {
    if (flat_.n_heads() == 0) {
        return 0;
    }
    return n_filled_ + (flat_.n_before_open() + flat_.n_heads() - 1) / flat_.n_heads();
}

const FlatCache::Head & edgekv_cache::head_of(uint32_t il, uint32_t g) const {
    if (il >= layers_.size() || g >= layers_[il].n_head_kv) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "there is no layer %u with a head %u", il, g);
    }
    return flat_.head(layers_[il].first_head + g);
}

uint64_t edgekv_cache::bytes() const {
    return CellArrays::bytes(flat_.n_cells_total(), cell_parts(shape, params_, staging_)) + work_->bytes() + work_->graph_bytes(true) +
           (window_ ? window_->bytes(true) : 0) + (state_ ? state_->bytes(true) : 0);
}

uint64_t edgekv_cache::device_bytes() const {
    return work_->graph_bytes(false) + (window_ ? window_->bytes(false) : 0) + (state_ ? state_->bytes(false) : 0);
}

void edgekv_cache::read(uint32_t il, uint32_t g, bool values, void * dst, size_t dst_size, edgekv_rows & rows) const {
    const HeadView       head   = cells(il, g);
    const edgekv_layer & layer  = layers_[il];
    ggml_tensor *        tensor = values ? layer.v : layer.k;
    const uint32_t       dim    = values ? layer.head_dim_v : layer.head_dim_k;
    const size_t         bytes  = ggml_row_size(tensor->type, dim); // less than a row, of the values of latents
    if (dst != nullptr && dst_size < head.n * bytes) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "dst holds %zu bytes, but %zu are needed", dst_size, head.n * bytes);
    }
    llama_synchronize(ctx);
    const size_t first = head_of(il, g).first;
    for (size_t i = 0; dst != nullptr && i < head.n; ++i) {
        ggml_backend_tensor_get(tensor, static_cast<char *>(dst) + i * bytes, (first + head.order[i]) * tensor->nb[1], bytes);
    }
    rows = { sizeof(rows), tensor->type, dst, head.n, bytes, dim, values ? value_rotation_ : rotation_ };
}

void edgekv_cache::read_queries(uint32_t il, bool probed, float * queries, int32_t * positions, uint32_t & n_rows,
                                float & scale) {
    if (il >= layers_.size()) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "there is no layer %u", il);
    }
    const uint32_t n_there = !window_ ? 0 : probed ? window_->n_probe() : window_->n_text(n_past);
    if (n_there == 0) {
        throw Error(EDGEKV_STATUS_INVALID_STATE, "no queries are there; open the cache with query rows, and feed it first");
    }
    llama_synchronize(ctx);
    const edgekv_layer & layer = layers_[il];
    n_rows = std::min(n_rows, n_there);
    scale  = window_->read(il, 0, layer.n_group * layer.n_head_kv, probed, n_past, { n_rows, 0 }, false, n_past - rope_past, work_->turn_of(il),
                           queries, positions);
}
