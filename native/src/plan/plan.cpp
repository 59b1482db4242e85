// From a ceiling to a plan.
#include "cache/shape.h"
#include "hooks/given.h"
#include "hooks/status.h"
#include "llama-context.h"
#include "llama-model.h"
#include "plan/open.h"
#include "plan/process.h"
#include "plan/settings.h"
#include "rows/context_rope.h"
#include "rows/flat_cache.h"
#include "rows/memory.h"
#include "score/policy_names.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

using namespace edgekv;

namespace {

constexpr uint32_t ubatch = 128; // tokens; larger ones read no faster, and their activations take memory
constexpr double   mib    = 1 << 20;

std::string name_of(const std::string & path) { return path.substr(path.find_last_of("/\\") + 1); }

uint64_t total(const edgekv_parts & parts) {
    return parts.host_bytes + parts.vocabulary_bytes + parts.graph_bytes + parts.rounding_bytes + parts.weight_bytes +
           parts.repack_bytes + parts.slot_bytes + parts.kv_bytes + parts.state_bytes + parts.compute_bytes + parts.output_bytes +
           parts.workspace_bytes + parts.bookkeeping_bytes + parts.reserved_bytes + parts.margin_bytes;
}

// Whether all keys of the cache can be turned to other positions.
bool is_movable(const llama_context & ctx) {
    try {
        require_turnable(ctx);
        return true;
    } catch (const Error & error) {
        if (error.status != EDGEKV_STATUS_UNSUPPORTED) {
            throw;
        }
        return false;
    }
}

void require_range(const char * name, uint64_t value, uint64_t low, uint64_t high) {
    if (value < low || value > high) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT, "%s = %llu is not possible; give a number in [%llu, %llu]", name,
             static_cast<unsigned long long>(value), static_cast<unsigned long long>(low), static_cast<unsigned long long>(high));
    }
}

edgekv_plan_request checked_request(edgekv_plan_request request) {
    if (request.n_threads == 0) {
        request.n_threads = std::min<uint32_t>(std::max(1u, std::thread::hardware_concurrency()), GGML_MAX_N_THREADS);
    }
    require_range("ceiling_bytes", request.ceiling_bytes, 1, UINT64_MAX);
    require_range("n_threads", request.n_threads, 1, GGML_MAX_N_THREADS);
    require_range("n_probe", request.n_probe, 0, 1024);
    require_range("n_sink", request.n_sink, 0, 1 << 20);
    require_range("n_recent", request.n_recent, 0, 1 << 20);
    require_range("block", request.block, 0, 4096);
    require_range("budget", request.budget, 0, 1 << 30);
    require_range("n_streamed + 1", int64_t(request.n_streamed) + 1, 0, 1 << 16);
    if (request.kv_type != 0) {
        require_type(request.kv_type);
    }
    const uint32_t least = request.n_sink + request.n_recent + 1;
    if (request.budget != 0 && request.budget < least) {
        fail(EDGEKV_STATUS_INVALID_ARGUMENT,
             "budget = %u does not hold the protected cells: %u sinks and %u recent; raise it to at least %u", request.budget,
             request.n_sink, request.n_recent, least);
    }
    return request;
}

// Plans of one model in any setting, whether they fit or not.
class Estimates {
  public:
    Estimates(const char * path, const edgekv_plan_request & request) : path_(path), request_(request) {
        return_freed_memory();
        host_bytes_       = counted_bytes();
        vocabulary_bytes_ = taken_by([&] { model(request.repack != 0); });
    }

    edgekv_choice choice() {
        return { sizeof(edgekv_choice),
                 request_.budget,
                 request_.n_sink + request_.n_recent + 1,
                 request_.block,
                 1,
                 request_.kv_type,
                 request_.repack,
                 request_.n_streamed,
                 (*models_.begin()->second)->hparams.n_layer_all,
                 request_.n_probe,
                 n_ctx_train(),
                 cache_params(1).ragged != 0,
                 request_.repositions };
    }

    bool fits(const edgekv_setting & setting) {
        const edgekv_plan plan = estimate(setting);
        if (!least_ || plan.peak_bytes < least_->peak_bytes) {
            least_ = plan;
        }
        return plan.peak_bytes <= request_.ceiling_bytes;
    }

    // Of all plans that were tried, the smallest.
    const edgekv_plan & least() const { return *least_; }

    edgekv_plan estimate(const edgekv_setting & setting) {
        edgekv_plan plan            = sized(setting);
        plan.parts.host_bytes       = host_bytes_;
        plan.parts.vocabulary_bytes = vocabulary_bytes_;
        plan.parts.graph_bytes      = graph_bytes(setting); // before there is a context, which it would measure
        plan.parts.reserved_bytes   = request_.reserved_bytes;
        const Context ctx           = new_context(model(setting.repack != 0), plan);
        checked(edgekv_context_parts, ctx.get(), &plan.cache, &plan.parts);
        edgekv_streaming streaming;
        checked(edgekv_parts_stream, model(setting.repack != 0).get(), setting.n_streamed, plan.n_ubatch, &plan.parts, &streaming);
        const edgekv_shape shape = shape_of(ctx.get());
        if (plan.cache.values != 0 && shape.latent_dim_v != 0) {
            fail(EDGEKV_STATUS_INVALID_ARGUMENT,
                 "a policy compares the values of a head, but %s keeps latents, of which every query head makes its own; choose one "
                 "that reads keys or attention, such as keydiff or snapkv",
                 name_of(path_).c_str());
        }
        plan.cell_bytes = shape.cell_bytes;
        plan.peak_bytes = total(plan.parts);
        return plan;
    }

    // The plan of the setting that was chosen, with what else a program wants to know.
    edgekv_plan finished(const edgekv_setting & setting) {
        edgekv_plan plan = estimate(setting);
        if (request_.repack < 0 && plan.parts.repack_bytes == 0) {
            plan.setting.repack = 0; // the same bytes, and mapped
        }
        const Context      ctx      = new_context(model(setting.repack != 0), plan);
        const edgekv_shape shape    = shape_of(ctx.get());
        plan.cache.repositions      = plan.cache.repositions != 0 && is_movable(*ctx);
        const bool has_no_positions = shape.n_layer == 0 && shape.window_cells == 0;
        const bool turns            = plan.cache.repositions != 0 && plan.layout.n_cells_max <= plan.n_ctx_train;
        plan.n_tokens_max           = has_no_positions || turns ? UINT32_MAX : plan.n_ctx_train;
        return plan;
    }

  private:
    const Model & model(bool repack) {
        auto & found = models_[repack];
        if (!found) {
            found.emplace(load_without_weights(path_.c_str(), repack));
        }
        return *found;
    }

    uint32_t n_ctx_train() { return static_cast<uint32_t>(llama_model_n_ctx_train(models_.begin()->second->get())); }

    edgekv_cache_params cache_params(uint32_t block) const {
        edgekv_cache_params params = default_of<edgekv_cache_params>();
        params.n_probe_rows        = request_.n_probe;
        params.repositions         = request_.repositions;
        checked(edgekv_cache_params_for, request_.policy, block, 0, &params);
        if (request_.n_probe > 0) {
            checked(edgekv_cache_params_for, request_.probe_policy, block, 1, &params);
        }
        return params;
    }

    // All that does not have to be measured.
    edgekv_plan sized(const edgekv_setting & setting) {
        edgekv_plan plan        = default_of<edgekv_plan>();
        plan.ceiling_bytes      = request_.ceiling_bytes;
        plan.setting            = setting;
        plan.policy             = given(*request_.policy);
        plan.probe_policy       = given(*request_.probe_policy);
        plan.cache              = cache_params(setting.block);
        plan.n_ubatch           = std::min(setting.block, ubatch);
        plan.n_threads          = request_.n_threads;
        plan.n_ctx_train        = n_ctx_train();
        plan.layout             = layout_for(setting.budget, setting.block, request_.n_probe, plan.cache.ragged,
                                                    plan.n_ctx_train);
        return plan;
    }

    // Of the description of a graph, measured with few cells, once for each type of cache, which makes nodes. All are measured
    // before any context with many cells was freed: that changes how glibc serves later ones.
    uint64_t graph_bytes(const edgekv_setting & setting) {
        if (graph_bytes_.empty()) {
            for (const int32_t type : { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
                edgekv_setting other = setting;
                other.kv_type        = type;
                try {
                    graph_bytes_[type] = measured_graph(other);
                } catch (const Error & error) {
                    if (error.status != EDGEKV_STATUS_INVALID_ARGUMENT) {
                        throw;
                    }
                }
            }
        }
        const auto found = graph_bytes_.find(setting.kv_type);
        return found != graph_bytes_.end() ? found->second : measured_graph(setting); // which says what is wrong
    }

    uint64_t measured_graph(edgekv_setting setting) {
        setting.budget            = 1;
        setting.block             = ubatch; // whatever is planned
        const Model &     weights = model(setting.repack != 0);
        const edgekv_plan plan    = sized(setting);
        std::optional<Context> ctx; // is there while it is measured
        return taken_by([&] { ctx.emplace(new_context(weights, plan)); });
    }

    const std::string                    path_;
    const edgekv_plan_request &          request_;
    std::map<bool, std::optional<Model>> models_; // by repacking, which is chosen when a model is loaded
    std::map<int32_t, uint64_t>          graph_bytes_;
    std::optional<edgekv_plan>           least_;
    uint64_t                             host_bytes_       = 0;
    uint64_t                             vocabulary_bytes_ = 0;
};

[[noreturn]] void refuse(Estimates & estimates, const edgekv_choice & choice, const std::string & path) {
    const edgekv_plan least = estimates.least();
    std::string         remedy;
    if (choice.budget != 0) {
        if (const auto found = largest_setting(choice, [&](const edgekv_setting & setting) { return estimates.fits(setting); })) {
            remedy = "lower budget to " + std::to_string(found->budget) + ", or ";
        }
    }
    fail(EDGEKV_STATUS_OVER_CEILING,
         "ceiling_bytes = %llu (%.1f MiB) does not hold %s with a budget of %u cells (%s, block %u): %.1f MiB are needed; %sraise "
         "ceiling_bytes to %llu, or choose a smaller model",
         static_cast<unsigned long long>(least.ceiling_bytes), least.ceiling_bytes / mib, name_of(path).c_str(),
         least.setting.budget, ggml_type_name(static_cast<ggml_type>(least.setting.kv_type)), least.setting.block,
         least.peak_bytes / mib, remedy.c_str(), static_cast<unsigned long long>(least.peak_bytes));
}

} // namespace

enum edgekv_status edgekv_plan_make(const char * path, const struct edgekv_plan_request * request, struct edgekv_plan * plan,
                                    char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(path && request && plan, "path, request or plan is NULL");
        require_whole(*plan);
        const edgekv_policy keydiff = default_of<edgekv_policy>(), largest_weight = policy_named(EDGEKV_PROBE_POLICY);
        edgekv_plan_request wanted  = checked_request(given(*request));
        wanted.policy               = wanted.policy != nullptr ? wanted.policy : &keydiff;
        wanted.probe_policy         = wanted.probe_policy != nullptr ? wanted.probe_policy : &largest_weight;
        Estimates           estimates(path, wanted);
        const edgekv_choice       choice = estimates.choice();
        const auto chosen = best_setting(choice, [&](const edgekv_setting & setting) { return estimates.fits(setting); });
        if (!chosen) {
            *plan = estimates.least();
            refuse(estimates, choice, path);
        }
        *plan = estimates.finished(*chosen);
    });
}
