// From a ceiling to a plan.
#include "edgekv_devices.h"
#include "hooks/status.h"
#include "plan/estimates.h"
#include "plan/request.h"
#include "plan/settings.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

using namespace edgekv;

struct edgekv_planner {
    Estimates estimates;
};

namespace {

constexpr double   mib         = 1 << 20;
constexpr uint32_t short_block = 32; // tokens; the shortest that is chosen

// Answers one request.
class Planner {
  public:
    Planner(Estimates & estimates, const edgekv_plan_request & request)
        : estimates_(estimates), request_(request), choice_(estimates.choice(request)) {}

    // None if nothing fits.
    std::optional<edgekv_plan> best() {
        const auto setting = best_setting(choice_, [&](const edgekv_setting & it) { return spare(it); });
        if (!setting) {
            return std::nullopt;
        }
        edgekv_plan plan = estimates_.plan(request_, *setting);
        if (request_.repack < 0 && plan.parts.repack_bytes == 0) {
            plan.setting.repack = 0; // the same bytes, and mapped
        }
        return plan;
    }

    // The plan that is least over its limits, with the given budget or else the smallest, and what would fit.
    edgekv_plan least() {
        std::optional<edgekv_plan> found;
        uint64_t                   least = 0;
        const auto                 note  = [&](const edgekv_setting & setting) {
            const edgekv_plan plan   = estimates_.plan(request_, setting);
            const uint64_t    excess = excess_bytes(request_, plan, estimates_.devices(request_, setting));
            if (!found || excess < least || (excess == least && plan.sequence_bytes < found->sequence_bytes)) {
                found = plan;
                least = excess;
            }
            return Left{ -1, 0 };
        };
        edgekv_choice mapped = choice_;
        mapped.repack        = std::max(choice_.repack, 0);
        best_setting(mapped, note);
        found->remedies = remedies(found->setting);
        return *found;
    }

  private:
    // A cell's bytes may lie on several devices, of which each has a limit of its own.
    Left spare(const edgekv_setting & setting) {
        const edgekv_plan plan    = estimates_.plan(request_, setting);
        const auto        devices = estimates_.devices(request_, setting);
        return { spare_bytes(request_, plan, devices), devices.empty() ? plan.cell_bytes : 0 };
    }

    // False if the model cannot have it.
    bool does_fit(const edgekv_setting & setting) {
        try {
            return spare(setting).bytes >= 0;
        } catch (const Error & error) {
            if (error.status != EDGEKV_STATUS_INVALID_ARGUMENT) {
                throw;
            }
            return false;
        }
    }

    edgekv_remedies remedies(const edgekv_setting & least) {
        edgekv_remedies found = {};
        if (least.budget != choice_.least_budget) {
            const auto largest = largest_setting(choice_, [&](const edgekv_setting & it) { return spare(it); });
            found.budget       = largest ? largest->budget : 0;
        }
        edgekv_setting coarser = least;
        coarser.kv_type        = GGML_TYPE_Q8_0;
        if (request_.kv_type != 0 && does_fit(coarser)) {
            found.kv_type = coarser.kv_type;
        }
        edgekv_setting shorter = least;
        shorter.block          = std::min(short_block, least.block);
        if (request_.block != 0 && shorter.block >= choice_.least_block && does_fit(shorter)) {
            found.block = shorter.block;
        }
        return found;
    }

    Estimates &                 estimates_;
    const edgekv_plan_request & request_;
    const edgekv_choice         choice_;
};

// What would make a plan fit, each remedy with what follows it in a sentence.
std::string remedies_of(const edgekv_plan & plan) {
    const edgekv_remedies & found = plan.remedies;
    std::string             text;
    text += found.budget != 0 ? "lower budget to " + std::to_string(found.budget) + ", or " : "";
    text += found.kv_type != 0 ? "set kv_type to GGML_TYPE_Q8_0, or " : "";
    text += found.block != 0 ? "set block to " + std::to_string(found.block) + ", or " : "";
    return text;
}

[[noreturn]] void refuse(const edgekv_plan & least, const std::string & path) {
    const std::string name     = path.substr(path.find_last_of("/\\") + 1);
    const std::string remedies = remedies_of(least);
    if (least.peak_bytes <= least.ceiling_bytes) {
        fail(EDGEKV_STATUS_OVER_CEILING,
             "limits of devices, or swap_memory_bytes and swap_disk_bytes, do not hold %s with a budget of %u cells, of which a snapshot "
             "takes %llu bytes; %sraise them",
             name.c_str(), least.setting.budget, static_cast<unsigned long long>(least.sequence_bytes), remedies.c_str());
    }
    fail(EDGEKV_STATUS_OVER_CEILING,
         "ceiling_bytes = %llu (%.1f MiB) does not hold %s with a budget of %u cells (%s, block %u): %.1f MiB are needed; %sraise "
         "ceiling_bytes to %llu, or choose a smaller model",
         static_cast<unsigned long long>(least.ceiling_bytes), least.ceiling_bytes / mib, name.c_str(), least.setting.budget,
         ggml_type_name(static_cast<ggml_type>(least.setting.kv_type)), least.setting.block, least.peak_bytes / mib, remedies.c_str(),
         static_cast<unsigned long long>(least.peak_bytes));
}

void choose(Estimates & estimates, const edgekv_plan_request & request, edgekv_plan & plan) {
    Planner    planner(estimates, request);
    const auto best = planner.best();
    plan            = best ? *best : planner.least();
    if (!best) {
        refuse(plan, estimates.path());
    }
}

} // namespace

enum edgekv_status edgekv_plan_make(const char * path, const struct edgekv_plan_request * request, struct edgekv_plan * plan,
                                    char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(path && request && plan, "path, request or plan is NULL");
        require_whole(*plan);
        const CheckedRequest wanted(*request);
        Estimates            estimates = with_path(path, [&] { return Estimates(path, *wanted); });
        choose(estimates, *wanted, *plan);
    });
}

enum edgekv_status edgekv_planner_new(const char * path, const struct edgekv_plan_request * request, struct edgekv_planner ** planner,
                                      char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(path && request && planner, "path, request or planner is NULL");
        *planner = new edgekv_planner{ Estimates(path, *CheckedRequest(*request)) };
    });
}

void edgekv_planner_free(struct edgekv_planner * planner) { delete planner; }

enum edgekv_status edgekv_planner_check(struct edgekv_planner * planner, const struct edgekv_plan_request * request,
                                        struct edgekv_shape * shape, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(planner && request && shape, "planner, request or shape is NULL");
        planner->estimates.check(*CheckedRequest(*request), *shape);
    });
}

enum edgekv_status edgekv_planner_choose(struct edgekv_planner * planner, const struct edgekv_plan_request * request,
                                         struct edgekv_plan * plan, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(planner && request && plan, "planner, request or plan is NULL");
        require_whole(*plan);
        choose(planner->estimates, *CheckedRequest(*request), *plan);
    });
}

enum edgekv_status edgekv_planner_estimate(struct edgekv_planner * planner, const struct edgekv_plan_request * request,
                                           struct edgekv_plan * plan, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(planner && request && plan, "planner, request or plan is NULL");
        require_whole(*plan);
        const CheckedRequest wanted(*request);
        require(wanted->budget != 0 && wanted->block != 0 && wanted->kv_type != 0, "budget, block or kv_type is left open");
        const auto n_streamed = static_cast<uint32_t>(std::max(wanted->n_streamed, 0));
        *plan = planner->estimates.plan(*wanted,
                                        { wanted->budget, wanted->block, wanted->kv_type, std::max(wanted->repack, 0), n_streamed });
    });
}

enum edgekv_status edgekv_planner_devices(struct edgekv_planner * planner, const struct edgekv_plan_request * request,
                                          const struct edgekv_plan * plan, struct edgekv_device_usage * usages, size_t n_usages, size_t * n,
                                          char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(planner && request && n, "planner, request or n is NULL");
        if (plan != nullptr) {
            require_whole(*plan);
        }
        const CheckedRequest wanted(*request);
        const auto found = plan == nullptr ? planner->estimates.devices(*wanted) : planner->estimates.devices(*wanted, plan->setting);
        *n               = found.size();
        require(usages == nullptr || n_usages >= *n, "usages has no room for all devices");
        std::copy_n(found.begin(), usages == nullptr ? 0 : *n, usages);
    });
}
