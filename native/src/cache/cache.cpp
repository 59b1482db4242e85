#include "cache/cache.h"

#include "abi/status.h"
#include "abi/weights_file.h"
#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "score/wo_norm.h"

#include <algorithm>

using namespace edgekv;

namespace edgekv {

bool is_staged(const edgekv_shape & shape, const edgekv_cache_params & params) { return shape.staged != 0 || params.staged != 0; }

size_t n_workers(const edgekv_shape & shape, const edgekv_cache_params & params) {
    return is_staged(shape, params) || params.custom_reads != 0 ? 1 : std::min(shape.n_threads, shape.n_layer);
}

CellParts cell_parts(const edgekv_cache_params & params) {
    return { params.accumulates != 0, params.wo_norms != 0, (params.ragged & EDGEKV_RAGGED_SOFTMAX) != 0, params.repositions != 0 };
}

ScratchSize scratch_size(const edgekv_shape & shape, const edgekv_cache_params & params) {
    ScratchSize size{ shape.n_cells_max, std::max(shape.head_dim_k, shape.head_dim_v) };
    size.n_rows   = std::max(params.n_query_rows, params.n_probe_rows);
    size.n_window = shape.n_group_max * size.n_rows;
    if (params.wo_norms) {
        const size_t n_columns = size_t(shape.n_head_max) * shape.head_dim_v;
        size                   = wo_norm_scratch(size, shape.n_head_kv_max, shape.head_dim_v, n_columns);
        size.wo_bytes          = WoNorm::n_slice * shape.w_o_row_bytes;
    }
    return size;
}

size_t contest_size(const edgekv_shape & shape, const edgekv_cache_params & params) {
    const size_t all = size_t(shape.n_head_total) * shape.n_cells;
    if (params.ragged & EDGEKV_RAGGED_MODEL) {
        return all;
    }
    return params.ragged != 0 ? std::min(all, size_t(shape.n_head_kv_max) * shape.n_cells_max) : 0;
}

} // namespace edgekv

namespace {

// The output projection of a layer.
ggml_tensor * output_projection(const llama_model & model, uint32_t il, size_t n_columns) {
    ggml_tensor * w_o = model.layers[il].wo;
    if (w_o == nullptr || static_cast<size_t>(w_o->ne[0]) != n_columns) {
        fail(EDGEKV_STATUS_UNSUPPORTED, "layer %u of architecture '%s' has no output projection that critical could read", il,
             model.arch_name().c_str());
    }
    return w_o;
}

// The learnt sinks of a layer's query heads, which may lie on a device.
std::vector<float> sinks_of(const llama_model & model, uint32_t il) {
    const ggml_tensor * tensor = model.layers[il].attn_sinks;
    std::vector<float>  sinks(tensor != nullptr ? tensor->ne[0] : 0);
    if (tensor != nullptr) {
        ggml_backend_tensor_get(tensor, sinks.data(), 0, sinks.size() * sizeof(float));
    }
    return sinks;
}

// The file where an output projection is read, or NULL where it can be read in memory.
const WeightsFile * file_of(const llama_model & model, const ggml_tensor & w_o) {
    if (!is_repacked(ggml_backend_buffer_get_type(w_o.buffer))) {
        return nullptr;
    }
    if (!model.weights_file) {
        throw Error(EDGEKV_STATUS_INVALID_ARGUMENT, "critical reads W_O, which was repacked and cannot be read back; load the model "
                                                    "with edgekv_model_load, or with use_extra_bufts = false");
    }
    return model.weights_file.get();
}

} // namespace

edgekv_cache::edgekv_cache(llama_context * ctx, const edgekv_cache_params & params) :
    ctx(ctx), kv(memory_of(ctx).cache), shape(shape_of(ctx)), params_(params), flat_(*memory_of(ctx).flat), claim_(flat_),
    rotation_(0), value_rotation_(0), softcap_(0.0f),
    cells_(flat_.n_rows(), cell_parts(params)), layer_budgets_(shape.n_layer), budgets_(shape.n_head_total),
    contest_(contest_size(shape, params)) {
    if (params.ragged && flat_.on_device()) {
        // flash attention there reads masks in runs of 16 bytes, and those of ragged heads begin anywhere
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "heads that keep different numbers of cells need the cache in host memory; use "
                                               "gpu_layers=0, or a policy without ada and pyramid");
    }
    if (params.n_draft >= ctx->get_cparams().n_outputs_max) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "drafts of %u tokens, but the context has n_outputs_max = %u; make it with %u",
             params.n_draft, ctx->get_cparams().n_outputs_max, params.n_draft + 1);
    }
    const Memory memory = memory_of(ctx);
    if (params.n_draft > 0 && (memory.windows != nullptr || memory.recurrent != nullptr)) {
        throw Error(EDGEKV_STATUS_UNSUPPORTED, "drafts need cells that can be dropped one by one, and this model keeps sliding windows "
                                               "or recurrent states; use n_draft = 0");
    }
    const llama_model &   model   = ctx->get_model();
    const llama_hparams & hparams = model.hparams;
    std::vector<uint32_t> n_head;
    if (!flat_.layers().empty()) {
        const FlatCache::Attention & first = flat_.attention(flat_.layers().front().il);
        rotation_                          = first.rotation_k;
        value_rotation_                    = first.rotation_v;
    }
    if (hparams.attn_soft_cap) {
        softcap_ = hparams.f_attn_logit_softcapping;
    }
    for (const FlatCache::Layer & flat : flat_.layers()) {
        const size_t  n_columns = size_t(hparams.n_head(flat.il)) * flat.head_dim_v;
        ggml_tensor * w_o       = params.wo_norms ? output_projection(model, flat.il, n_columns) : nullptr;

        const WeightsFile * file = w_o != nullptr ? file_of(model, *w_o) : nullptr;

        layers_.push_back({ flat, hparams.n_gqa(flat.il), w_o, file, file != nullptr ? file->find(*w_o) : 0, sinks_of(model, flat.il) });
        n_head.push_back(hparams.n_head(flat.il));
        if (params.repositions != 0) {
            turns_.emplace_back(rope_angles(*ctx, flat.il), flat.head_dim_k, flat.k->type, rotation_);
        }
    }
    scratch_.resize(edgekv::n_workers(shape, params));
    for (auto & scratch : scratch_) {
        scratch.reserve(scratch_size(shape, params));
    }
    custom_.reserve(shape, params);
    if (is_staged(shape, params)) {
        for (const auto & pool : flat_.pools()) {
            copy_k_.resize(std::max(copy_k_.size(), pool.k->nb[1] * shape.n_cells_max));
            copy_v_.resize(std::max(copy_v_.size(), pool.v->nb[1] * shape.n_cells_max));
        }
    }
    if (params.n_query_rows > 0 || params.n_probe_rows > 0) {
        window_.emplace(flat_, n_head, params.n_query_rows, params.n_draft, params.n_probe_rows);
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

void edgekv_cache::clear() {
    ctx->get_memory()->clear(false);
    flat_.clear();
    n_filled_  = 0;
    n_drafted_ = 0;
    divided_   = false;
    n_past     = 0;
    rope_past  = 0;
    n_fresh_   = 0;
    normed_    = 0;
    if (window_) {
        window_->clear();
    }
}

HeadCells edgekv_cache::cells(uint32_t il, uint32_t g) const {
    const FlatCache::Head & head = head_of(il, g);
    return cells_.at(flat_.pools()[layers_[il].pool].offset + head.first, head.kept + n_filled_);
}

uint32_t edgekv_cache::n_kept(uint32_t il, uint32_t g) const { return head_of(il, g).kept; }

uint32_t edgekv_cache::n_cells() const {
    if (flat_.n_heads() == 0) {
        return 0;
    }
    return n_filled_ + (flat_.n_kept() + flat_.n_heads() - 1) / flat_.n_heads();
}

const FlatCache::Head & edgekv_cache::head_of(uint32_t il, uint32_t g) const {
    if (il >= layers_.size() || g >= layers_[il].n_head_kv) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "there is no layer %u with a head %u", il, g);
    }
    return flat_.head(layers_[il].first_head + g);
}

uint64_t edgekv_cache::bytes() const {
    uint64_t sum = copy_k_.capacity() + copy_v_.capacity() + CustomArrays::bytes(shape, params_) + cells_.bytes() +
                   contest_.capacity() * sizeof(float);
    for (const auto & scratch : scratch_) {
        sum += scratch.held();
    }
    return sum + (window_ ? window_->bytes(true) : 0) + (state_ ? state_->bytes(true) : 0);
}

uint64_t edgekv_cache::device_bytes() const {
    return (window_ ? window_->bytes(false) : 0) + (state_ ? state_->bytes(false) : 0);
}

void edgekv_cache::read(uint32_t il, uint32_t g, bool values, void * dst, size_t dst_size, edgekv_rows & rows) const {
    const HeadCells      head   = cells(il, g);
    const edgekv_layer & layer  = layers_[il];
    ggml_tensor *        tensor = values ? layer.v : layer.k;
    const uint32_t       dim    = values ? layer.head_dim_v : layer.head_dim_k;
    const size_t         bytes  = tensor->nb[1];
    if (dst_size < head.n * bytes) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "dst holds %zu bytes, but %zu are needed", dst_size, head.n * bytes);
    }
    llama_synchronize(ctx);
    const size_t first = head_of(il, g).first;
    for (size_t i = 0; i < head.n; ++i) {
        ggml_backend_tensor_get(tensor, static_cast<char *>(dst) + i * bytes, (first + head.order[i]) * bytes, bytes);
    }
    rows = { dst, tensor->type, dim, head.n, bytes, values ? value_rotation_ : rotation_, 0 };
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
    scale  = window_->read(il, 0, layer.n_group * layer.n_head_kv, probed, n_past, n_rows, false, n_past - rope_past, turn_of(il), queries,
                           positions);
}
