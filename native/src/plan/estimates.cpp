#include "plan/estimates.h"

#include "cache/shape.h"
#include "edgekv_archive.h"
#include "hooks/status.h"
#include "llama-context.h"
#include "llama-model.h"
#include "plan/process.h"
#include "plan/request.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace edgekv {

namespace {

constexpr uint32_t measured_block = 128;     // whatever is planned
constexpr uint64_t history_bytes  = 1 << 16; // of a snapshot: tokens in which drafts are looked up

std::string name_of(const std::string & path) { return path.substr(path.find_last_of("/\\") + 1); }

uint64_t total(const edgekv_parts & parts) {
    return parts.host_bytes + parts.vocabulary_bytes + parts.graph_bytes + parts.rounding_bytes + parts.weight_bytes +
           parts.repack_bytes + parts.slot_bytes + parts.kv_bytes + parts.state_bytes + parts.compute_bytes + parts.output_bytes +
           parts.workspace_bytes + parts.bookkeeping_bytes + parts.swap_bytes + parts.reserved_bytes + parts.margin_bytes;
}

std::string bytes_of(const edgekv_cache_params & params) {
    return std::string(reinterpret_cast<const char *>(&params), sizeof(params)); // 32-bit numbers without gaps
}

const edgekv_device_limit * limit_of(const edgekv_plan_request & request, const edgekv_device_usage & device) {
    const auto end   = request.limits + request.n_limits;
    const auto found = std::find_if(request.limits, end, [&](const auto & it) { return std::strcmp(it.name, device.name) == 0; });
    return found == end ? nullptr : found;
}

// Whether a server gets a copy of each graph.
bool is_served(const edgekv_plan_request & request) {
    return std::any_of(request.limits, request.limits + request.n_limits, [](const auto & it) { return it.serving_bytes > 0; });
}

std::vector<edgekv_device_usage> usages_of(const llama_context & ctx, const edgekv_cache_params & params) {
    std::vector<edgekv_device_usage> usages(ctx.get_model().devices.size());
    size_t                           n = 0;
    if (!usages.empty()) {
        checked(edgekv_context_devices, &ctx, &params, usages.data(), usages.size(), &n);
    }
    return usages;
}

// Bytes that work takes: measured, unless they are named. The work is done in any case.
template <typename Work> uint64_t taken(uint64_t named, Work && work) {
    if (named == 0) {
        return taken_by(work);
    }
    work();
    return named;
}

// Why the model of a context can have no such cache; none if it can. Throws Error for parameters that no model can have.
std::optional<Error> refusal_of(const llama_context & ctx, const edgekv_cache_params & params) {
    try {
        checked(edgekv_cache_check, &ctx, &params);
    } catch (const Error & error) {
        if (error.status != EDGEKV_STATUS_UNSUPPORTED) {
            throw;
        }
        return error;
    }
    return std::nullopt;
}

// Archives of all slots, and a recall while it runs.
uint64_t archive_bytes(const edgekv_plan_request & request, const edgekv_plan & plan, const edgekv_shape & shape) {
    if (request.n_recalled == 0 || shape.n_head_total == 0) {
        return 0;
    }
    return request.n_slots * edgekv_archive_estimate_bytes(&shape, plan.layout.n_probe, recalled_cells(request, plan.setting.block),
                                                           plan.setting.block);
}

// Bytes over all devices' limits, and the least room that one of them leaves.
struct OnDevices {
    uint64_t excess = 0;
    int64_t  spare  = INT64_MAX;
};

OnDevices on_devices(const edgekv_plan_request & request, const std::vector<edgekv_device_usage> & devices) {
    OnDevices found;
    for (const edgekv_device_usage & device : devices) {
        const edgekv_device_limit * limit = limit_of(request, device);
        if (limit != nullptr && limit->allowed_bytes != UINT64_MAX) {
            const int64_t left = static_cast<int64_t>(limit->allowed_bytes) - static_cast<int64_t>(device.weight_bytes + device.kv_bytes +
                                 device.compute_bytes + device.scoring_bytes + device.serving_bytes + device.context_bytes);
            found.spare = std::min(found.spare, left);
            found.excess += left < 0 ? -left : 0;
        }
    }
    return found;
}

// Bytes that swap space leaves if two sequences take turns; any number if there is none to keep to.
int64_t swap_spare(const edgekv_plan_request & request, const edgekv_plan & plan) {
    const auto n_bytes = static_cast<int64_t>(plan.sequence_bytes);
    if (request.swap_disk_bytes != 0) {
        return request.swap_disk_bytes == UINT64_MAX ? INT64_MAX : static_cast<int64_t>(request.swap_disk_bytes) - n_bytes;
    }
    return request.swap_memory_bytes == 0 ? INT64_MAX : static_cast<int64_t>(request.swap_memory_bytes) - 2 * n_bytes;
}

int64_t host_spare(const edgekv_plan & plan) {
    return static_cast<int64_t>(std::min<uint64_t>(plan.ceiling_bytes, INT64_MAX)) - static_cast<int64_t>(plan.peak_bytes);
}

} // namespace

Estimates::Estimates(const char * path, const edgekv_plan_request & request) : path_(path) {
    return_freed_memory();
    host_bytes_        = request.host_bytes != 0 ? request.host_bytes : counted_bytes();
    vocabulary_bytes_  = taken(request.vocabulary_bytes, [&] { model(request, request.repack != 0); });
    const auto & first = models_.begin()->second;
    n_layers_          = first->hparams.n_layer_all;
    n_ctx_train_       = static_cast<uint32_t>(llama_model_n_ctx_train(first.get()));
}

edgekv_plan Estimates::plan(const edgekv_plan_request & request, const edgekv_setting & setting) {
    edgekv_plan   plan  = plan_without_parts(request, setting, n_ctx_train_);
    const Graph & small = graph(request, setting);
    if (plan.cache.values != 0 && small.shape.latent_dim_v != 0) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT,
             "a policy compares the values of a head, but %s keeps latents, of which every query head makes its own; choose one "
             "that reads keys or attention, such as keydiff or snapkv",
             name_of(path_).c_str());
    }
    if (small.refused) {
        throw *small.refused;
    }
    const Needs & found = needs(request, plan);
    plan.n_layers             = n_layers_;
    plan.cell_bytes           = found.shape.cell_bytes;
    plan.segment_bytes        = request.n_recalled > 0 ? edgekv_archive_segment_bytes(&found.shape) : 0;
    plan.parts                = found.parts;
    plan.parts.reserved_bytes = request.reserved_bytes;
    plan.parts.workspace_bytes += found.scratch_bytes;
    plan.parts.bookkeeping_bytes += archive_bytes(request, plan, found.shape);
    add_streaming(request, plan);

    uint64_t numbers_bytes = 0;
    plan.sequence_bytes    = found.parts.state_bytes + (plan.cache.n_draft > 0 ? history_bytes : 0) +
                             edgekv_snapshot_estimate_bytes(&found.shape, &plan.cache, setting.budget + setting.block, &numbers_bytes);
    for (const edgekv_device_usage & device : found.devices) {
        plan.sequence_bytes += device.state_bytes;
    }
    plan.parts.swap_bytes = request.swap_memory_bytes + (request.swap_disk_bytes != 0 ? numbers_bytes + request.swap_buffer_bytes : 0);
    plan.peak_bytes       = total(plan.parts);

    plan.layout.n_cells_max     = std::max(found.shape.n_cells_max, plan.layout.n_cells); // no more than there are rows
    const bool has_no_positions = found.shape.n_layer == 0 && found.shape.window_cells == 0;
    plan.cache.repositions      = small.turns;
    const bool turns            = small.turns && plan.layout.n_cells_max <= plan.n_ctx_train;
    plan.n_tokens_max           = has_no_positions || turns ? UINT32_MAX : plan.n_ctx_train;
    return plan;
}

std::vector<edgekv_device_usage> Estimates::devices(const edgekv_plan_request & request, const edgekv_setting & setting) {
    const Needs & found   = needs(request, plan_without_parts(request, setting, n_ctx_train_));
    auto          devices = found.devices;
    for (edgekv_device_usage & device : devices) {
        const edgekv_device_limit * limit = limit_of(request, device);
        if (limit == nullptr || device.compute_bytes == 0) {
            continue;
        }
        device.context_bytes = limit->context_bytes;
        device.serving_bytes = limit->serving_bytes > 0 ? limit->serving_bytes + found.parts.workspace_bytes : 0;
    }
    return devices;
}

std::vector<edgekv_device_usage> Estimates::devices(const edgekv_plan_request & request) {
    const auto                       weights = model(request, request.repack != 0);
    std::vector<edgekv_device_usage> devices(weights->devices.size());
    for (size_t i = 0; i < devices.size(); ++i) {
        std::snprintf(devices[i].name, sizeof(devices[i].name), "%s", ggml_backend_dev_name(weights->devices[i].dev));
    }
    return devices;
}

void Estimates::check(const edgekv_plan_request & request, edgekv_shape & shape) {
    const int32_t kv_type = request.kv_type != 0 ? request.kv_type : GGML_TYPE_F16;
    const Graph & small   = graph(request, { 1, measured_block, kv_type, request.repack != 0, 0 });
    shape                 = small.shape;
    if (small.refused) {
        throw *small.refused;
    }
}

edgekv_choice Estimates::choice(const edgekv_plan_request & request) const {
    return choice_of(request, n_layers_, n_ctx_train_);
}

const std::shared_ptr<llama_model> & Estimates::model(const edgekv_plan_request & request, bool repack) {
    place(request);
    auto & found = models_[repack];
    if (!found) {
        found = load_without_weights(path_.c_str(), repack, request.gpu_layers, request.tensor_split);
    }
    return found;
}

// Each model holds a vocabulary, so models of one division are loaded at a time.
void Estimates::place(const edgekv_plan_request & request) {
    const size_t n_devices = request.tensor_split == nullptr ? 0 : llama_max_devices();
    decltype(division_) division = { request.gpu_layers, { request.tensor_split, request.tensor_split + n_devices } };
    if (division != division_) {
        needs_.clear();
        graphs_.clear();
        models_.clear();
        division_ = std::move(division);
    }
}

const Estimates::Needs & Estimates::needs(const edgekv_plan_request & request, const edgekv_plan & plan) {
    const edgekv_setting & setting = plan.setting;
    const edgekv_layout &  layout  = plan.layout;
    const auto             weights = model(request, setting.repack != 0);
    const Key              key     = { weights.get(),
                                       { static_cast<uint32_t>(setting.kv_type), layout.n_cells, layout.n_cells_max, layout.n_probe,
                                         layout.n_slots, plan.n_ubatch, plan.n_threads },
                                       bytes_of(plan.cache),
                                       request.scratch_data };
    const auto             known   = needs_.find(key);
    if (known != needs_.end()) {
        return known->second;
    }
    Needs found                  = {};
    found.parts.host_bytes       = host_bytes_;
    found.parts.vocabulary_bytes = vocabulary_bytes_;
    found.parts.graph_bytes      = graph(request, setting).n_bytes * (is_served(request) ? 2 : 1);
    {
        const Context ctx = new_context(*weights, plan);
        checked(edgekv_context_parts, ctx.get(), &plan.cache, &found.parts);
        found.shape   = shape_of(ctx.get());
        found.devices = usages_of(*ctx, plan.cache);
    }
    if (found.parts.repack_bytes == 0) {
        models_.emplace(false, weights); // both models are the same if nothing is repacked
    }
    if (request.scratch != nullptr) {
        found.scratch_bytes = request.scratch(request.scratch_data, &found.shape);
        if (found.scratch_bytes == UINT64_MAX) {
            throw Error(EDGEKV_STATUS_INTERNAL, "the callback gave up");
        }
    }
    return needs_.emplace(key, std::move(found)).first->second;
}

// All types of cache are measured before any context with many cells is freed: that changes how glibc serves later ones.
const Estimates::Graph & Estimates::graph(const edgekv_plan_request & request, const edgekv_setting & setting) {
    place(request);
    edgekv_cache_params params = cache_params(request, measured_block);
    params.n_draft             = 0;
    auto & graphs              = graphs_[{ bytes_of(params), request.repositions }];
    if (graphs.empty()) {
        for (const int32_t type : { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
            edgekv_setting other = setting;
            other.kv_type        = type;
            try {
                graphs.emplace(type, measured_graph(request, other));
            } catch (const Error & error) {
                if (error.status != EDGEKV_STATUS_INVALID_ARGUMENT) {
                    throw;
                }
            }
        }
    }
    const auto known = graphs.find(setting.kv_type);
    return known != graphs.end() ? known->second : graphs.emplace(setting.kv_type, measured_graph(request, setting)).first->second;
}

Estimates::Graph Estimates::measured_graph(const edgekv_plan_request & request, edgekv_setting setting) {
    setting.budget                     = 1;
    setting.block                      = measured_block;
    edgekv_plan_request of_small       = request;
    of_small.n_ubatch                  = std::max(request.n_ubatch, measured_block);
    of_small.n_draft                   = 0;
    const auto &           weights     = model(request, setting.repack != 0);
    edgekv_plan            plan        = plan_without_parts(of_small, setting, n_ctx_train_);
    std::optional<Context> ctx; // is there while it is measured
    const uint64_t         n_bytes     = taken(request.graph_bytes, [&] { ctx.emplace(new_context(*weights, plan)); });
    std::optional<Error>   refused     = refusal_of(**ctx, plan.cache);
    if (refused && request.repositions == 1) {
        plan.cache.repositions = 0;
        refused                = refusal_of(**ctx, plan.cache);
    }
    return { n_bytes, shape_of(ctx->get()), plan.cache.repositions != 0, refused };
}

// Take out the weights that stay in the file: those of streamed layers, and tables that are looked up.
void Estimates::add_streaming(const edgekv_plan_request & request, edgekv_plan & plan) {
    if (request.maps != 0 || request.gpu_layers > 0) {
        return;
    }
    edgekv_streaming streaming;
    checked(edgekv_parts_stream, model(request, plan.setting.repack != 0).get(), plan.setting.n_streamed, plan.n_ubatch, &plan.parts,
            &streaming);
    plan.streamed_bytes = streaming.streamed_bytes + streaming.expert_bytes;
    plan.token_bytes    = streaming.streamed_bytes + streaming.expert_bytes * streaming.n_experts_used / std::max(1u, streaming.n_experts);
}

int64_t spare_bytes(const edgekv_plan_request & request, const edgekv_plan & plan, const std::vector<edgekv_device_usage> & devices) {
    return std::min({ host_spare(plan), on_devices(request, devices).spare, swap_spare(request, plan) });
}

uint64_t excess_bytes(const edgekv_plan_request & request, const edgekv_plan & plan, const std::vector<edgekv_device_usage> & devices) {
    const int64_t spare = host_spare(plan);
    return (spare < 0 ? -spare : 0) + on_devices(request, devices).excess;
}

} // namespace edgekv
